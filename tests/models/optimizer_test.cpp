// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/random.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

constexpr int kSteps = 6;
using Doubles = std::vector<double>;

// Four parameters in a network's layout: each aligned, with zeros between them.
class Arena {
 public:
  Arena() {
    add("fc.bias", {10});
    add("fc.weight", {10, 40});
    add("bn.weight", {5});
    add("conv.weight", {5, 3, 3, 3});
    values.resize(static_cast<std::size_t>(size_));
    gradients.resize(values.size());
    fill("value", values);
  }

  TrainedMemory memory() {
    range_ = {.end = size_, .data = gradients.data()};
    return {.parameters = parameters, .values = values, .gradients = std::span(&range_, 1)};
  }
  void make_gradients(int step) { fill("gradient " + std::to_string(step), gradients); }
  // The parameter that owns an element; null for padding.
  const Parameter* owner(std::size_t element) const {
    for (const Parameter& parameter : parameters) {
      const std::int64_t place = static_cast<std::int64_t>(element) - parameter.offset;
      if (place >= 0 && place < parameter.layout.physical_elements()) return &parameter;
    }
    return nullptr;
  }

  std::vector<Parameter> parameters;
  std::vector<float> values, gradients;

 private:
  void add(const std::string& name, const Shape& shape) {
    const Layout layout(shape, DType::f32);
    parameters.push_back({.name = name, .layout = layout, .offset = size_});
    size_ += static_cast<std::int64_t>(align_up(layout.bytes()) / sizeof(float));
  }
  void fill(const std::string& purpose, std::vector<float>& memory) {
    const Random random(7, purpose);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = owner(i) != nullptr ? random.normal(i) : 0.0f;
  }

  std::int64_t size_ = 0;
  FlatRange range_;
};

std::int64_t steps(const Optimizer& optimizer) {
  Stream stream({}, StreamUse::compute);
  return optimizer.read_control(stream).step - 1;
}

bool is_vector(const Parameter& parameter) { return parameter.layout.shape().rank() == 1; }

// One parameter's values and states in double precision.
struct Exact {
  Doubles value, first, second;
};
// The reference of one step. t counts from 1.
using Rule = void (*)(const Parameter& parameter, Exact& exact, std::span<const float> gradient, int t);

double rate_of(int t) { return 0.1 / t; }

// change: changes the parameters first.
void expect_follows(const OptimizerOptions& options, Rule rule,
                    void (*change)(std::vector<Parameter>& parameters) = nullptr) {
  Arena arena;
  if (change != nullptr) change(arena.parameters);
  const auto optimizer = make_optimizer(arena.memory(), options);
  std::vector<Exact> exact;
  const auto piece = [](std::span<float> memory, const Parameter& parameter) {
    return memory.subspan(static_cast<std::size_t>(parameter.offset),
                          static_cast<std::size_t>(parameter.layout.physical_elements()));
  };
  for (const Parameter& parameter : arena.parameters) {
    const auto values = piece(arena.values, parameter);
    exact.push_back({{values.begin(), values.end()}, Doubles(values.size()), Doubles(values.size())});
  }
  Stream stream({}, StreamUse::compute);
  for (int t = 1; t <= kSteps; ++t) {
    arena.make_gradients(t);
    optimizer->step(stream, static_cast<float>(rate_of(t)));
    EXPECT_EQ(steps(*optimizer), t);
    for (std::size_t p = 0; p < exact.size(); ++p) {
      const Parameter& parameter = arena.parameters[p];
      rule(parameter, exact[p], piece(arena.gradients, parameter), t);
      const auto values = piece(arena.values, parameter);
      const auto first = piece(optimizer->state().first(arena.values.size()), parameter);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], exact[p].value[i], 2e-6) << parameter.name << " " << i << ", step " << t;
        ASSERT_NEAR(first[i], exact[p].first[i], 2e-6) << parameter.name << " " << i << ", step " << t;
      }
    }
  }
  for (std::size_t i = 0; i < arena.values.size(); ++i) {
    if (arena.owner(i) == nullptr) {
      EXPECT_EQ(arena.values[i], 0) << "padding at " << i;
    }
  }
}

constexpr double kDecay = 0.01;

template <bool kNesterov, bool kExempt>
void sgd_rule(const Parameter& parameter, Exact& exact, std::span<const float> gradient, int t) {
  const double decay = kExempt && is_vector(parameter) ? 0 : kDecay;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] + decay * exact.value[i];
    exact.first[i] = 0.9 * exact.first[i] + g;
    exact.value[i] -= rate_of(t) * (kNesterov ? g + 0.9 * exact.first[i] : exact.first[i]);
  }
}

template <bool kExempt>
void adamw_rule(const Parameter& parameter, Exact& exact, std::span<const float> gradient, int t) {
  const double decay = kExempt && is_vector(parameter) ? 0 : kDecay;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    exact.value[i] *= 1 - rate_of(t) * decay;
    exact.first[i] = 0.8 * exact.first[i] + 0.2 * g;
    exact.second[i] = 0.95 * exact.second[i] + 0.05 * g * g;
    const double first = exact.first[i] / (1 - std::pow(0.8, t));
    const double second = exact.second[i] / (1 - std::pow(0.95, t));
    exact.value[i] -= rate_of(t) * first / (std::sqrt(second) + 1e-3);
  }
}

constexpr double kL2 = 0.05;
template <Rule kRule>
void with_l2(const Parameter& parameter, Exact& exact, std::span<const float> gradient, int t) {
  std::vector<float> with_penalty(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < gradient.size(); ++i)
    with_penalty[i] += 2 * parameter.l2 * static_cast<float>(exact.value[i]);
  kRule(parameter, exact, with_penalty, t);
}

void lars_rule(const Parameter& parameter, Exact& exact, std::span<const float> gradient, int t) {
  double value_norm = 0, gradient_norm = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    value_norm = std::hypot(value_norm, exact.value[i]);
    gradient_norm = std::hypot(gradient_norm, static_cast<double>(gradient[i]));
  }
  const double decay = is_vector(parameter) ? 0 : kDecay;
  const double ratio =
      is_vector(parameter) ? 1 : 0.02 * value_norm / (gradient_norm + decay * value_norm + 1e-3);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    exact.first[i] = 0.9 * exact.first[i] + ratio * (gradient[i] + decay * exact.value[i]);
    exact.value[i] -= rate_of(t) * exact.first[i];
  }
}

TEST(Optimizer, SgdFollowsPyTorchsForm) {
  expect_follows(SgdOptions{.weight_decay = kDecay}, sgd_rule<false, false>);
  expect_follows(SgdOptions{.weight_decay = kDecay, .decay_norm_and_bias = false}, sgd_rule<false, true>);
}

TEST(Optimizer, NesterovFollowsPyTorchsForm) {
  expect_follows(SgdOptions{.weight_decay = kDecay, .nesterov = true}, sgd_rule<true, false>);
  expect_follows(SgdOptions{.weight_decay = kDecay, .nesterov = true, .decay_norm_and_bias = false},
                 sgd_rule<true, true>);
}

TEST(Optimizer, AdamWFollowsPyTorchsForm) {
  AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = kDecay};
  expect_follows(options, adamw_rule<false>);
  options.decay_norm_and_bias = false;
  expect_follows(options, adamw_rule<true>);
}

// The penalty l2 * sum of squares is part of the loss; AdamW's own decay is not.
TEST(Optimizer, PenaltyOfAParameterIsAddedToItsGradient) {
  const auto penalize = [](std::vector<Parameter>& parameters) {
    for (std::size_t i = 0; i < parameters.size(); i += 2) parameters[i].l2 = static_cast<float>(kL2);
  };
  expect_follows(SgdOptions{.weight_decay = kDecay}, with_l2<sgd_rule<false, false>>, penalize);
  expect_follows(AdamWOptions{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = kDecay},
                 with_l2<adamw_rule<false>>, penalize);
}

TEST(Optimizer, LarsAppliesTrustRatiosToMatricesOnly) {
  expect_follows(LarsOptions{.weight_decay = kDecay, .trust_coefficient = 0.02, .epsilon = 1e-3}, lars_rule);
}

// Layer norm of images has parameters of three dimensions. The gradients are zero.
TEST(Optimizer, ParametersOfNormsAreExemptFromDecayWhateverTheirShape) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(SgdOptions{.momentum = 0, .weight_decay = 1, .decay_norm_and_bias = false}),
        OptimizerOptions(AdamWOptions{.weight_decay = 1, .decay_norm_and_bias = false}),
        OptimizerOptions(LarsOptions{.momentum = 0, .weight_decay = 1})}) {
    NetworkFixture fixture(
        {.batch = 2, .height = 4, .width = 4, .channels = 3, .classes = 5}, [](Graph& graph) {
          const Value x = graph.convolution(graph.input(), {.channels = 4}, "conv");
          graph.classify(graph.linear(graph.layer_norm(x, {}, "norm"), {.features = 5}, "fc"));
        });
    const std::span<const float> values = fixture.network().values();
    const std::vector<float> before(values.begin(), values.end());
    make_optimizer(fixture.trained_memory(), options)->step(fixture.stream(), 0.5);
    for (const Parameter& parameter : fixture.network().parameters()) {
      const float factor = parameter.name == "conv.weight" || parameter.name == "fc.weight" ? 0.5f : 1.0f;
      for (std::int64_t i = 0; i < parameter.layout.physical_elements(); ++i)
        ASSERT_EQ(parameter.value[i], factor * before[static_cast<std::size_t>(parameter.offset + i)])
            << parameter.name << " by rule " << options.index();
    }
  }
}

TEST(Optimizer, OptionsThatGiveNoFiniteStepAreRefused) {
  Arena arena;
  for (const OptimizerOptions& options :
       {OptimizerOptions(AdamWOptions{.beta1 = 1}), OptimizerOptions(AdamWOptions{.beta2 = 1}),
        OptimizerOptions(AdamWOptions{.epsilon = 0})})
    EXPECT_THROW(make_optimizer(arena.memory(), options), Error);
  EXPECT_THROW(make_optimizer(arena.memory(), SgdOptions{}, {.initial = 0}), Error);
}

TEST(Optimizer, StateIsOneArenaPerName) {
  Arena arena;
  const auto names = [&](const OptimizerOptions& options) {
    const auto optimizer = make_optimizer(arena.memory(), options);
    EXPECT_EQ(optimizer->state().size(), optimizer->state_names().size() * arena.values.size());
    EXPECT_EQ(steps(*optimizer), 0);
    return optimizer->state_names();
  };
  EXPECT_EQ(names(SgdOptions{}), std::vector<std::string>{"momentum_buffer"});
  EXPECT_EQ(names(LarsOptions{}), std::vector<std::string>{"momentum_buffer"});
  EXPECT_EQ(names(AdamWOptions{}), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

// state() and read_control() are all that must be saved: another optimizer with both continues with the same
// bits, and one without the step count does not.
TEST(Optimizer, ResumesFromStateAndStepCount) {
  const auto run = [](Optimizer& optimizer, Arena& arena, int begin, int end) {
    Stream stream({}, StreamUse::compute);
    for (int t = begin; t < end; ++t) {
      arena.make_gradients(t);
      optimizer.step(stream, 0.01f);
    }
  };
  for (const OptimizerOptions& options :
       {OptimizerOptions(SgdOptions{}), OptimizerOptions(AdamWOptions{}), OptimizerOptions(LarsOptions{})}) {
    Arena straight, resumed, forgetful;
    const auto optimizer = make_optimizer(straight.memory(), options);
    run(*optimizer, straight, 0, 3);
    const auto second = make_optimizer(resumed.memory(), options);
    const auto third = make_optimizer(forgetful.memory(), options);
    for (const auto& [arena, copy] : {std::pair(&resumed, &*second), std::pair(&forgetful, &*third)}) {
      arena->values = straight.values;
      std::ranges::copy(optimizer->state(), copy->state().begin());
    }
    Stream stream({}, StreamUse::compute);
    second->restore_control(stream, optimizer->read_control(stream));
    run(*optimizer, straight, 3, 6);
    run(*second, resumed, 3, 6);
    run(*third, forgetful, 3, 6);
    EXPECT_EQ(resumed.values, straight.values);
    EXPECT_EQ(steps(*second), 6);
    EXPECT_EQ(forgetful.values == straight.values, !std::holds_alternative<AdamWOptions>(options));
  }
}

// The values equal those of a step with these gradients, and the caller can restore them. Gradients that are
// not finite change nothing.
TEST(Optimizer, LookAheadEqualsAStepAndCanBeRestored) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(SgdOptions{.weight_decay = kDecay}), OptimizerOptions(SgdOptions{.nesterov = true}),
        OptimizerOptions(AdamWOptions{}), OptimizerOptions(LarsOptions{})}) {
    Arena arena;
    const auto optimizer = make_optimizer(arena.memory(), options);
    Stream stream({}, StreamUse::compute);
    for (int t = 1; t <= 3; ++t) {
      arena.make_gradients(t);
      optimizer->step(stream, 0.01);
    }
    const std::vector<float> before = arena.values;
    const std::vector<float> state(optimizer->state().begin(), optimizer->state().end());
    arena.make_gradients(4);
    std::vector<float> others = arena.gradients;
    for (float& gradient : others) gradient *= 8;
    const FlatRange range{.end = static_cast<std::int64_t>(others.size()), .data = others.data()};
    StepControl control{.loss_scale = 8, .finite = 0};
    optimizer->set_learning_rate({}, 0.02);
    optimizer->look_ahead(stream, {}, std::span(&range, 1), &control);
    EXPECT_EQ(arena.values, before) << options.index();
    control.finite = 1;
    optimizer->look_ahead(stream, {}, std::span(&range, 1), &control);
    EXPECT_TRUE(std::ranges::equal(optimizer->state(), state)) << options.index();
    EXPECT_EQ(steps(*optimizer), 3);
    const std::vector<float> ahead = arena.values;
    std::ranges::copy(before, arena.values.begin());
    optimizer->step(stream, 0.02);
    EXPECT_EQ(ahead, arena.values) << options.index();
    EXPECT_NE(ahead, before);
  }
}

// The result of PyTorch's clip_grad_norm_ on one parameter with gradients 3, 4, 0 and 12, whose norm is 13.
TEST(Optimizer, ClipsAsPyTorchDoes) {
  struct Case {
    double most_norm;
    float loss_scale;
    float clip;
  };
  // most / (13 + 1e-6), at most 1, as PyTorch computes it.
  for (const Case& c : {Case{1, 1, 0.076923071f}, Case{6.5, 1, 0.49999996f}, Case{6.5, 1024, 0.49999996f},
                        Case{13, 1, 0.99999992f}, Case{13.001, 1, 1.0f}, Case{1e30, 1, 1.0f}}) {
    SCOPED_TRACE(fmt::format("norm {} at a loss scale of {}", c.most_norm, c.loss_scale));
    const Layout layout(Shape{4}, DType::f32);
    const std::vector<Parameter> parameters = {{.name = "w", .layout = layout, .offset = 0}};
    std::vector<float> values(4, 0.0f), gradients = {3, 4, 0, 12};
    for (float& each : gradients) each *= c.loss_scale;
    const FlatRange range{.end = 4, .data = gradients.data()};
    const auto optimizer = make_optimizer(
        {.parameters = parameters, .values = values, .copies = {}, .gradients = std::span(&range, 1)},
        SgdOptions{.momentum = 0}, {.initial = c.loss_scale});
    Stream stream({}, StreamUse::compute);
    std::vector<double> sums(kSquareSums);
    optimizer->sum_gradient_squares(stream, sums.data());
    optimizer->clip_gradients(stream, sums.data(), c.most_norm);
    EXPECT_FLOAT_EQ(optimizer->read_control(stream).clip, c.clip);
    optimizer->step(stream, 1.0);
    const float plain[] = {3, 4, 0, 12};
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], -c.clip * plain[i]) << i;
  }
}

// Each optimizer, and LARS with its norms: a clipped step equals a step with scaled gradients.
TEST(Optimizer, AClippedStepEqualsAStepWithScaledGradients) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(SgdOptions{.weight_decay = kDecay}), OptimizerOptions(SgdOptions{.nesterov = true}),
        OptimizerOptions(AdamWOptions{}), OptimizerOptions(LarsOptions{})}) {
    Arena clipped, scaled;
    const auto clips = make_optimizer(clipped.memory(), options);
    const auto plain = make_optimizer(scaled.memory(), options);
    Stream stream({}, StreamUse::compute);
    std::vector<double> sums(kSquareSums);
    for (int t = 1; t <= 3; ++t) {
      clipped.make_gradients(t);
      scaled.make_gradients(t);
      double squares = 0;
      for (const float each : clipped.gradients) squares += double{each} * double{each};
      const auto factor = static_cast<float>(0.25 / (std::sqrt(squares) + 1e-6));
      ASSERT_LT(factor, 0.1f);
      for (float& each : scaled.gradients) each *= factor;
      clips->sum_gradient_squares(stream, sums.data());
      clips->clip_gradients(stream, sums.data(), 0.25);
      clips->step(stream, 0.01);
      plain->step(stream, 0.01);
      for (std::size_t i = 0; i < clipped.values.size(); ++i)
        ASSERT_NEAR(clipped.values[i], scaled.values[i], 1e-6) << options.index() << ", " << i;
    }
  }
}

// Such a step is skipped, and its clip factor does not affect the next step.
TEST(Optimizer, NonFiniteGradientsDoNotAffectTheClipFactor) {
  Arena arena;
  const auto optimizer =
      make_optimizer(arena.memory(), SgdOptions{}, {.initial = 1, .rule = {.interval = 10}});
  Stream stream({}, StreamUse::compute);
  std::vector<double> sums(kSquareSums);
  const std::vector<float> before = arena.values;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    arena.make_gradients(1);
    arena.gradients[0] = bad;
    optimizer->check_gradients(stream);
    optimizer->sum_gradient_squares(stream, sums.data());
    optimizer->clip_gradients(stream, sums.data(), 1);
    optimizer->step(stream, 0.1);
    EXPECT_EQ(optimizer->read_control(stream).clip, 1.0f);
    EXPECT_EQ(arena.values, before);
    EXPECT_EQ(steps(*optimizer), 0);
  }
}

// Reads the numbers of an optimizer's state, and replaces the loss scale if `to` is set.
class LossScaleVisitor final : public StateVisitor {
 public:
  explicit LossScaleVisitor(std::optional<double> to = {}) : to_(to) {}
  bool writes() const override { return to_.has_value(); }
  void tensor(const StateTensor&, StateScope) override {}
  void value(const std::string& name, StateScope, StateValue value) override {
    if (name != "optimizer.loss_scale") return;
    double& scale = *std::get<double*>(value);
    if (to_) scale = *to_;
    seen = scale;
  }
  double seen = 0;

 private:
  std::optional<double> to_;
};

// Zero gradients never overflow, whatever the loss scale.
TEST(Optimizer, TheLossScaleOfZeroGradientsStaysWithinItsLimits) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(SgdOptions{}), OptimizerOptions(AdamWOptions{}), OptimizerOptions(LarsOptions{})}) {
    Arena arena;
    const auto optimizer =
        make_optimizer(arena.memory(), options, {.initial = 65536, .rule = {.interval = 1}});
    Stream stream({}, StreamUse::compute);
    for (int step = 0; step < 1000; ++step) {
      optimizer->check_gradients(stream);
      optimizer->step(stream, 0.01);
    }
    EXPECT_EQ(steps(*optimizer), 1000);
    EXPECT_TRUE(std::ranges::all_of(arena.values, [](float value) { return std::isfinite(value); }));
    LossScaleVisitor saved;
    optimizer->visit_state(saved);
    EXPECT_EQ(saved.seen, 0x1p24);
  }
}

// An earlier version may have saved such a loss scale.
TEST(Optimizer, ARestoredLossScaleIsClampedToItsLimits) {
  Arena arena;
  const auto optimizer =
      make_optimizer(arena.memory(), SgdOptions{}, {.initial = 65536, .rule = {.interval = 1}});
  const auto restored = [&](double scale) {
    LossScaleVisitor writer(scale);
    optimizer->visit_state(writer);
    LossScaleVisitor reader;
    optimizer->visit_state(reader);
    return reader.seen;
  };
  EXPECT_EQ(restored(2048), 2048);
  EXPECT_EQ(restored(HUGE_VAL), 0x1p24);
  EXPECT_EQ(restored(0), 0x1p-10);
  EXPECT_EQ(restored(std::nan("")), 65536);
}

}  // namespace
}  // namespace lockstep
