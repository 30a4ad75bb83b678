// SPDX-License-Identifier: Apache-2.0
//
// Single kernels compared with PyTorch in float64 (make_kernel_golden.py): random shapes and
// hyper-parameters, and inputs from 2^-40 to 2^40. The golden file holds a bound for each result.
// kernel_peers.py derives it from the roundings of fp32 arithmetic, for any order of summation, and states
// the rules for overflow and underflow: an infinite result must be infinite here, a result whose bound is
// infinite is undecided.
//
// LOCKSTEP_KERNEL_GOLDEN names another folder of golden files: make_kernel_golden.py --check uses it for
// other random cases.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "core/random.h"
#include "tests/kernels/planned_memory.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

class KernelGolden {
 public:
  explicit KernelGolden(const std::string& family)
      : reader_(folder() + "/" + family + ".safetensors"),
        cases_(nlohmann::json::parse(reader_.metadata().at("cases"))) {}
  // Prints the result whose error is closest to its bound.
  ~KernelGolden() {
    EXPECT_GT(decided_, 0);
    EXPECT_LE(10 * undecided_, decided_) << "too few results can be compared";
    fmt::print("{} cases, {} results; closest to its bound, at {:.2f} of it: {}\n", cases_.size(), decided_,
               nearest_, nearest_name_);
  }

  // Calls test() for each case.
  template <typename Test>
  void for_each(Test test) {
    for (case_ = 0; case_ < cases_.size(); ++case_) {
      SCOPED_TRACE(fmt::format("case {}: {}", case_, cases_[case_].dump()));
      test();
    }
  }

  template <typename T>
  T get(const char* key) const {
    return cases_[case_].at(key).get<T>();
  }
  const nlohmann::json& at(const char* key) const { return cases_[case_].at(key); }
  bool has(const std::string& result) const {
    return reader_.find(fmt::format("{}.{}", case_, result)) != nullptr;
  }

  // An input of the case: kernel_cases.draw.
  Values draw(const std::string& name) const {
    const nlohmann::json& tensor = at("tensors").at(name);
    const auto exponents = tensor.at("exponents").get<std::vector<std::int32_t>>();
    const auto period = tensor.at("period").get<std::size_t>();
    const auto powers = tensor.at("spread").get<std::uint32_t>() + 1;
    const Random bits(get<std::uint64_t>("seed"), name),
        above(get<std::uint64_t>("seed"), name + " exponent");
    Values values(tensor.at("count").get<std::size_t>());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int32_t exponent = exponents[i / period % exponents.size()];
      const std::uint32_t power = static_cast<std::uint32_t>(127 + exponent) + above.bits(i) % powers;
      values[i] = std::bit_cast<float>((bits.bits(i) & 0x807fffffu) | power << 23);
    }
    return values;
  }
  Values magnitudes(const std::string& name) const {
    Values values = draw(name);
    for (float& value : values) value = std::abs(value);
    return values;
  }

  void expect(const std::string& name, std::span<const float> ours) {
    const Values exact = read(name), bounds = read(name + ".bound");
    ASSERT_EQ(ours.size(), exact.size()) << name;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const auto wanted = static_cast<double>(exact[i]), bound = static_cast<double>(bounds[i]);
      if (std::isinf(bound)) {
        ++undecided_;
        continue;
      }
      ++decided_;
      if (ours[i] == exact[i]) continue;  // infinities, too
      const double error = std::abs(static_cast<double>(ours[i]) - wanted);
      ASSERT_LE(error, bound) << name << " at " << i << ": " << ours[i] << ", PyTorch has " << exact[i];
      if (error > nearest_ * bound) {
        nearest_ = error / bound;
        nearest_name_ = fmt::format("{} of case {}", name, case_);
      }
    }
  }

 private:
  static std::string folder() {
    const char* other = std::getenv("LOCKSTEP_KERNEL_GOLDEN");
    return other == nullptr ? source_folder() + "/tests/peers/golden/kernels" : other;
  }
  Values read(const std::string& name) {
    const SafetensorsEntry* entry = reader_.find(fmt::format("{}.{}", case_, name));
    if (entry == nullptr) throw DataError(fmt::format("the golden file has no {} of case {}", name, case_));
    Values values(static_cast<std::size_t>(entry->shape.elements()));
    reader_.read(*entry, std::as_writable_bytes(std::span(values)));
    return values;
  }

  SafetensorsReader reader_;
  nlohmann::json cases_;
  std::size_t case_ = 0;
  std::int64_t decided_ = 0, undecided_ = 0;
  double nearest_ = 0;
  std::string nearest_name_ = "all are equal";
};

Shape shape_of(const KernelGolden& golden) { return Shape(golden.get<std::vector<std::int64_t>>("shape")); }

// The memory of one optimizer.
struct OptimizerMemory {
  explicit OptimizerMemory(const KernelGolden& golden)
      : value(golden.draw("value")),
        first(Values(value.values().size(), 0.0f)),
        second(Values(value.values().size(), 0.0f)) {}
  GuardedMemory value, first, second;
};

UpdateTable table_of(const KernelGolden& golden) {
  std::vector<UpdateSegment> segments;
  for (const nlohmann::json& segment : golden.at("segments"))
    segments.push_back({.begin = segment.at("begin").get<std::int64_t>(),
                        .count = segment.at("count").get<std::int64_t>(),
                        .weight_decay = segment.at("weight_decay").get<float>(),
                        .adaptive = segment.value("adaptive", false)});
  return UpdateTable({}, segments);
}

void take_steps(const KernelGolden& golden, const UpdateTable& table, OptimizerMemory& memory,
                const UpdateRule& rule) {
  Stream stream(Device{}, StreamUse::compute);
  for (std::int64_t step = 1; step <= golden.get<std::int64_t>("steps"); ++step) {
    const GuardedMemory gradient(golden.draw(fmt::format("gradient {}", step)));
    const StepControl control{.learning_rate = golden.get<double>("learning_rate"),
                              .step = step,
                              .loss_scale = golden.get<float>("loss_scale"),
                              .clip = golden.get<float>("clip")};
    cpu_backend().update(
        stream,
        {.table = table, .value = memory.value.floats(), .gradient = gradient.data(), .control = &control},
        rule);
  }
  EXPECT_TRUE(memory.value.margin_intact() && memory.first.margin_intact() && memory.second.margin_intact());
}

void expect_sgd(const std::string& family) {
  KernelGolden golden(family);
  golden.for_each([&] {
    const UpdateTable table = table_of(golden);
    OptimizerMemory memory(golden);
    take_steps(golden, table, memory,
               SgdUpdate{.momentum_buffer = memory.first.floats(),
                         .momentum = golden.get<float>("momentum"),
                         .nesterov = golden.get<bool>("nesterov")});
    golden.expect("value", memory.value.values());
    if (golden.has("momentum")) golden.expect("momentum", memory.first.values());
  });
}

TEST(KernelGolden, SgdMatchesPyTorch) { expect_sgd("sgd"); }
TEST(KernelGolden, SgdOverflowsToInfinityAndUnderflowsToZero) { expect_sgd("sgd_out_of_range"); }

TEST(KernelGolden, AdamWMatchesPyTorch) {
  KernelGolden golden("adamw");
  golden.for_each([&] {
    const UpdateTable table = table_of(golden);
    OptimizerMemory memory(golden);
    take_steps(golden, table, memory,
               AdamWUpdate{.first_moment = memory.first.floats(),
                           .second_moment = memory.second.floats(),
                           .beta1 = golden.get<double>("beta1"),
                           .beta2 = golden.get<double>("beta2"),
                           .epsilon = golden.get<double>("epsilon")});
    golden.expect("value", memory.value.values());
    golden.expect("first_moment", memory.first.values());
    golden.expect("second_moment", memory.second.values());
  });
}

TEST(KernelGolden, LarsMatchesItsFormulaInFloat64) {
  KernelGolden golden("lars");
  golden.for_each([&] {
    const UpdateTable table = table_of(golden);
    OptimizerMemory memory(golden);
    std::vector<SquaredNorms> norms(table.chunks().size());
    std::vector<float> trust_ratios(table.segments().size());
    take_steps(golden, table, memory,
               LarsUpdate{.momentum_buffer = memory.first.floats(),
                          .norms = norms,
                          .trust_ratios = trust_ratios,
                          .momentum = golden.get<float>("momentum"),
                          .trust_coefficient = golden.get<float>("trust_coefficient"),
                          .epsilon = golden.get<float>("epsilon")});
    golden.expect("value", memory.value.values());
    golden.expect("momentum", memory.first.values());
    golden.expect("trust_ratios", trust_ratios);
  });
}

TEST(KernelGolden, SoftmaxCrossEntropyMatchesPyTorch) {
  KernelGolden golden("loss");
  golden.for_each([&] {
    const auto batch = golden.get<std::int64_t>("batch"), classes = golden.get<std::int64_t>("classes");
    const Random random(golden.get<std::uint64_t>("seed"), "labels");
    std::vector<std::int32_t> labels;
    for (std::int64_t sample = 0; sample < batch; ++sample)
      labels.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(sample)) %
                                                 static_cast<std::uint32_t>(classes)));
    Values weights = golden.magnitudes("weights");
    for (const nlohmann::json& sample : golden.at("without_weight")) weights[sample.get<std::size_t>()] = 0;
    const Values shares = golden.magnitudes("shares");
    const GuardedMemory logits(golden.draw("logits"));
    const GuardedMemory gradient(logits.values().size() * sizeof(float));
    const GuardedMemory scratch(cpu_backend().loss_scratch_bytes(batch));
    const auto loss_scale = golden.get<float>("loss_scale");
    LossSums sums;
    Stream stream(Device{}, StreamUse::compute);
    cpu_backend().softmax_cross_entropy(stream,
                                        {.batch = batch,
                                         .classes = classes,
                                         .logits = logits.data(),
                                         .labels = labels.data(),
                                         .weights = weights.data(),
                                         .shares = golden.get<bool>("mixes") ? shares.data() : nullptr,
                                         .label_smoothing = golden.get<float>("label_smoothing"),
                                         .gradient_scale = golden.get<float>("gradient_scale"),
                                         .loss_scale = &loss_scale,
                                         .logits_gradient = gradient.data(),
                                         .sums = &sums,
                                         .scratch = scratch.data()});
    golden.expect("loss", Values{sums.loss});
    golden.expect("weight", Values{sums.weight});
    golden.expect("correct", Values{static_cast<float>(sums.correct)});
    golden.expect("samples", Values{static_cast<float>(sums.samples)});
    golden.expect("gradient", gradient.values());
    EXPECT_TRUE(gradient.margin_intact());
  });
}

BatchNormOptions batch_norm_options(const KernelGolden& golden) {
  const auto activation = golden.get<std::string>("activation");
  return {.epsilon = golden.get<float>("epsilon"),
          .momentum = golden.get<float>("momentum"),
          .activation = activation == "relu"    ? Activation::relu
                        : activation == "relu6" ? Activation::relu6
                                                : Activation::none,
          .residual = golden.get<bool>("residual"),
          .frozen = golden.get<bool>("frozen")};
}

// The input plus the center of its channel.
Values batch_norm_x(const KernelGolden& golden) {
  const Shape shape = shape_of(golden);
  const auto centers = golden.get<std::vector<float>>("centers");
  const auto pixels = static_cast<std::size_t>(shape[2] * shape[3]);
  Values x = golden.draw("x");
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += centers[i / pixels % centers.size()];
  return x;
}

void expect_batch_norm(KernelGolden& golden, const Layout& layout) {
  const BatchNormOptions options = batch_norm_options(golden);
  const auto kernel = cpu_backend().batch_norm(options, layout);
  const PlannedMemory x(layout, batch_norm_x(golden)), y_gradient(layout, golden.draw("y_gradient"));
  const PlannedMemory residual(layout, options.residual ? golden.draw("residual") : golden.draw("x"));
  const GuardedMemory scale(golden.draw("scale")), shift(golden.draw("shift")),
      mean(golden.draw("running_mean")), variance(golden.magnitudes("running_var")),
      saved(kernel->saved_bytes()), scratch(kernel->scratch_bytes());
  const std::size_t channel_bytes = scale.values().size() * sizeof(float);
  const GuardedMemory scale_gradient(channel_bytes), shift_gradient(channel_bytes);
  PlannedMemory y(layout), x_gradient(layout), residual_gradient(layout);
  const BatchNormForward forward{.x = x.data(),
                                 .residual = options.residual ? residual.data() : nullptr,
                                 .parameters = {scale.floats(), shift.floats()},
                                 .running = {mean.floats(), variance.floats()},
                                 .y = y.data(),
                                 .saved = saved.data(),
                                 .scratch = scratch.data()};
  Stream stream(Device{}, StreamUse::compute);
  kernel->forward_evaluation(stream, forward);
  golden.expect("evaluation_y", y.plain());
  y.spoil();
  kernel->forward_training(stream, forward);
  golden.expect("y", y.plain());
  kernel->backward(stream, {.x = x.data(),
                            .y_gradient = y_gradient.data(),
                            .parameters = forward.parameters,
                            .saved = saved.data(),
                            .x_gradient = x_gradient.data(),
                            .residual_gradient = options.residual ? residual_gradient.data() : nullptr,
                            .scale_gradient = scale_gradient.floats(),
                            .shift_gradient = shift_gradient.floats(),
                            .scratch = scratch.data()});
  golden.expect("x_gradient", x_gradient.plain());
  if (options.residual) golden.expect("residual_gradient", residual_gradient.plain());
  if (options.frozen) return;
  golden.expect("scale_gradient", scale_gradient.values());
  golden.expect("shift_gradient", shift_gradient.values());
  golden.expect("mean", mean.values());
  golden.expect("variance", variance.values());
}

TEST(KernelGolden, BatchNormMatchesPyTorch) {
  KernelGolden golden("batch_norm");
  golden.for_each([&] {
    for (const Layout& layout : layouts_for(shape_of(golden))) {
      SCOPED_TRACE(layout.describe());
      expect_batch_norm(golden, layout);
    }
  });
}

TEST(KernelGolden, PoolingMatchesPyTorch) {
  KernelGolden golden("pooling");
  golden.for_each([&] {
    const PoolingOptions options{
        .kind = golden.get<std::string>("kind") == "max" ? PoolingKind::max : PoolingKind::average,
        .kernel = golden.get<std::int64_t>("kernel"),
        .stride = golden.get<std::int64_t>("stride"),
        .padding = golden.get<std::int64_t>("padding"),
        .global = golden.get<bool>("global")};
    for (const Layout& layout : layouts_for(shape_of(golden))) {
      SCOPED_TRACE(layout.describe());
      const auto kernel = cpu_backend().pooling(options, layout);
      const PlannedMemory x(layout, golden.draw("x")),
          y_gradient(kernel->output(), golden.draw("y_gradient"));
      const GuardedMemory saved(kernel->saved_bytes()), scratch(kernel->scratch_bytes());
      PlannedMemory y(kernel->output()), x_gradient(layout);
      Stream stream(Device{}, StreamUse::compute);
      kernel->forward(stream, x.data(), y.data(), saved.data(), scratch.data());
      kernel->backward(stream, y_gradient.data(), saved.data(), x_gradient.data(), scratch.data());
      golden.expect("y", y.plain());
      golden.expect("x_gradient", x_gradient.plain());
    }
  });
}

}  // namespace
}  // namespace lockstep
