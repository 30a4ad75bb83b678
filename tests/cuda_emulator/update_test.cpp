// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/update.h"

#include <functional>

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// Sizes around packs of lanes and chunks.
constexpr std::int64_t kUpdateCounts[] = {
    1, 7, 8, 9, 2049, kUpdateChunk - 1, kUpdateChunk, kUpdateChunk + 1, 20001};
constexpr int kSteps = 3;
constexpr float kLossScale = 4;

using Segments = std::vector<UpdateSegment>;

enum class Rule { sgd, nesterov, adamw, lars };
constexpr Rule kRules[] = {Rule::sgd, Rule::nesterov, Rule::adamw, Rule::lars};

double learning_rate_of(Rule rule) { return rule == Rule::adamw ? 0.01 : rule == Rule::lars ? 5.0 : 0.1; }

struct Result {
  Values value, first, second, copy, trust_ratios;

  Values all() const {
    Values joined = value;
    for (const Values* part : {&first, &second, &copy, &trust_ratios}) {
      joined.insert(joined.end(), part->begin(), part->end());
    }
    return joined;
  }
};

// Runs an update by the CPU or by the emulated kernel.
using UpdateFunction = std::function<void(Stream&, const Update&, const UpdateRule&)>;

class CudaUpdates : public testing::Test {
 protected:
  struct Case {
    std::int64_t count = 0;
    Segments segments;
    DType gradient_type = DType::f32;
    bool copied = false;
    std::int32_t finite = 1;
    std::size_t misaligned = 0;
    bool state_stays = false;
    float clip = 1;

    // The gradient on the device, multiplied by the loss scale.
    Values gradient(int step) const {
      Values values = random_values(count, "gradient " + std::to_string(step));
      for (float& value : values) value *= kLossScale;
      return rounded(values, gradient_type);
    }
    DType copy_type() const { return gradient_type == DType::bf16 ? DType::bf16 : DType::f16; }
  };

  Result run(const UpdateFunction& step_by, const Case& c, Rule rule) {
    Result r = start(c);
    const DeviceMemory value(r.value, DType::f32, c.misaligned), first(r.first, DType::f32, c.misaligned),
        second(r.second, DType::f32), trust_ratios(r.trust_ratios, DType::f32),
        copy(Values(c.copied ? r.value.size() : 0, 5.0f), c.copy_type()), control(sizeof(StepControl));
    const UpdateTable table({}, c.segments);
    const DeviceMemory norms(table.chunks().size() * sizeof(SquaredNorms));
    for (int step = 1; step <= kSteps; ++step) {
      const DeviceMemory gradient(c.gradient(step), c.gradient_type);
      *control.as<StepControl>() = {.learning_rate = learning_rate_of(rule),
                                    .step = step,
                                    .loss_scale = kLossScale,
                                    .finite = c.finite,
                                    .clip = c.clip};
      const Update update{.table = table,
                          .value = value.as<float>(),
                          .gradient = gradient.data(),
                          .gradient_type = c.gradient_type,
                          .copy = c.copied ? copy.data() : nullptr,
                          .copy_type = c.copy_type(),
                          .control = control.as<const StepControl>(),
                          .state_stays = c.state_stays && step == kSteps};
      if (rule == Rule::sgd || rule == Rule::nesterov) {
        step_by(
            stream_, update,
            SgdUpdate{
                .momentum_buffer = first.as<float>(), .momentum = 0.9f, .nesterov = rule == Rule::nesterov});
      } else if (rule == Rule::adamw) {
        step_by(stream_, update,
                AdamWUpdate{.first_moment = first.as<float>(), .second_moment = second.as<float>()});
      } else {
        step_by(stream_, update,
                LarsUpdate{.momentum_buffer = first.as<float>(),
                           .norms = {norms.as<SquaredNorms>(), table.chunks().size()},
                           .trust_ratios = {trust_ratios.as<float>(), table.segments().size()},
                           .momentum = 0.9f,
                           .trust_coefficient = 0.02f});
      }
    }
    return {.value = value.values(DType::f32),
            .first = first.values(DType::f32),
            .second = second.values(DType::f32),
            .copy = copy.values(c.copy_type()),
            .trust_ratios = trust_ratios.values(DType::f32)};
  }
  Result on_cpu(const Case& c, Rule rule) {
    const UpdateFunction step_by = [&](Stream& stream, const Update& update, const UpdateRule& by) {
      cpu_.update(stream, update, by);
    };
    Case aligned = c;
    aligned.misaligned = 0;
    return run(step_by, aligned, rule);
  }
  Result emulated(const Case& c, Rule rule) { return run(cuda_update, c, rule); }

  static Result start(const Case& c) {
    return {.value = random_values(c.count, "value"),
            .first = Values(static_cast<std::size_t>(c.count), 0.0f),
            .second = Values(static_cast<std::size_t>(c.count), 0.0f),
            .trust_ratios = Values(c.segments.size(), 0.0f)};
  }

  void expect_cpus(const Case& c, Rule rule) {
    SCOPED_TRACE(fmt::format("rule {}, {} elements, gradients {}, copied {}, {} bytes off",
                             static_cast<int>(rule), c.count, name_of(c.gradient_type), c.copied,
                             c.misaligned));
    const Result expected = on_cpu(c, rule);
    Result actual;
    in_any_order([&] {
      actual = emulated(c, rule);
      return actual.all();
    });
    expect_near(actual.value, widen(expected.value), 1e-6, 1e-6);
    expect_near(actual.first, widen(expected.first), 1e-6, 1e-7);
    expect_near(actual.second, widen(expected.second), 1e-6, 1e-9);
    if (rule == Rule::lars) expect_near(actual.trust_ratios, widen(expected.trust_ratios), 1e-6, 0);
    ASSERT_EQ(actual.copy.size(), expected.copy.size());
    expect_near(actual.copy, widen(expected.copy), 2 * precision_of(c.copy_type()), 1e-6);
  }

  Stream stream_{Device{}, StreamUse::compute};
  Backend& cpu_ = backend_for(Device{});
};

TEST_F(CudaUpdates, EqualTheCpu) {
  for (const Rule rule : kRules) {
    for (const std::int64_t count : kUpdateCounts) {
      for (const DType type : kElementTypes) {
        Case c{.count = count,
               .segments = {{.count = count, .weight_decay = 0.01f, .penalty = 0.05f, .adaptive = true}},
               .gradient_type = type,
               .copied = type != DType::f32};
        expect_cpus(c, rule);
        if (count > 3000) continue;
        c.copied = !c.copied;
        c.misaligned = 4;
        expect_cpus(c, rule);
        c.state_stays = true;
        c.clip = 0.375f;
        expect_cpus(c, rule);
        if (rule != Rule::sgd && rule != Rule::nesterov) continue;
        c.segments[0].gradient_has_momentum = true;
        expect_cpus(c, rule);
      }
    }
  }
}

TEST_F(CudaUpdates, KeepElementsOutsideSegmentsAtAnyAlignment) {
  constexpr std::int64_t kCount = 2 * kUpdateChunk + 100;
  const Segments segments = {
      {.begin = 5, .count = 20, .weight_decay = 0.1f, .adaptive = true},
      {.begin = 32, .count = 8},
      {.begin = 1000, .count = kUpdateChunk + 7, .weight_decay = 0.2f, .adaptive = true},
      {.begin = kCount - 2, .count = 1, .adaptive = true}};
  for (const Rule rule : kRules) {
    for (const DType type : kElementTypes) {
      expect_cpus({.count = kCount, .segments = segments, .gradient_type = type, .copied = true}, rule);
    }
  }
}

// A warp adds up the norms of a segment's chunks.
TEST_F(CudaUpdates, TrustRatiosAreOfAllChunksOfASegment) {
  constexpr std::int64_t kCount = 33 * kUpdateChunk + 5;
  expect_cpus({.count = kCount, .segments = {{.count = kCount, .weight_decay = 0.01f, .adaptive = true}}},
              Rule::lars);
}

TEST_F(CudaUpdates, ChangeNothingIfGradientsAreNotFinite) {
  for (const Rule rule : kRules) {
    const Case c{.count = 9000,
                 .segments = {{.count = 9000, .weight_decay = 0.01f, .adaptive = true}},
                 .gradient_type = DType::f16,
                 .copied = true,
                 .finite = 0};
    const Result before = start(c);
    const Result after = emulated(c, rule);
    EXPECT_EQ(after.value, before.value);
    EXPECT_EQ(after.first, before.first);
    EXPECT_EQ(after.second, before.second);
    EXPECT_EQ(after.copy, Values(9000, 5.0f));
    EXPECT_EQ(after.trust_ratios, before.trust_ratios);
  }
}

TEST_F(CudaUpdates, ChangeOnlyValuesIfStateIsKept) {
  for (const Rule rule : kRules) {
    Case c{.count = 9000,
           .segments = {{.count = 9000, .weight_decay = 0.01f, .adaptive = true}},
           .gradient_type = DType::f16,
           .copied = true};
    const Result stepped = emulated(c, rule);
    c.state_stays = true;
    const Result ahead = emulated(c, rule);
    EXPECT_EQ(ahead.value, stepped.value);
    EXPECT_EQ(ahead.copy, stepped.copy);
    EXPECT_NE(ahead.first, stepped.first);
    EXPECT_EQ(ahead.second == stepped.second, rule != Rule::adamw);
  }
}

TEST_F(CudaUpdates, AnEmptyTableLaunchesNoKernel) {
  const UpdateTable table({}, {});
  const Update update{.table = table};
  for (const UpdateRule& rule :
       {UpdateRule(SgdUpdate{}), UpdateRule(AdamWUpdate{}), UpdateRule(LarsUpdate{})})
    cuda_update(stream_, update, rule);
}

TEST_F(CudaUpdates, RestoreUndoesASkippedStep) {
  const DeviceMemory control(sizeof(StepControl));
  for (const std::int64_t count : kUpdateCounts) {
    for (const std::size_t misaligned : {0, 4}) {
      const Values before = random_values(count, "before"), after = random_values(count, "after");
      const DeviceMemory from(before, DType::f32, misaligned);
      DeviceMemory to(after, DType::f32);
      for (const std::int32_t finite : {1, 0}) {
        *control.as<StepControl>() = {.finite = finite};
        EXPECT_EQ(in_any_order([&] {
                    to.write(after, DType::f32);
                    cuda_restore_if_skipped(stream_, {.control = control.as<const StepControl>(),
                                                      .count = count,
                                                      .from = from.as<const float>(),
                                                      .to = to.as<float>()});
                    return to.values(DType::f32);
                  }),
                  finite == 0 ? before : after);
      }
    }
  }
}

// Partial sums are added in another order than on the CPU.
TEST_F(CudaUpdates, ClippingEqualsTheCpu) {
  std::vector<double> parts(kSquareSums);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = 1.0 / static_cast<double>(i + 1);
  const DeviceMemory sums(parts.size() * sizeof(double)), control(sizeof(StepControl));
  std::ranges::copy(parts, sums.as<double>());
  for (const double most : {1e-3, 0.5, 2.0, 3.0}) {
    for (const float loss_scale : {1.0f, 0.25f}) {
      StepControl cpus{.loss_scale = loss_scale};
      cpu_.clip_gradients(stream_, {.sums = parts.data(), .most_norm = most, .control = &cpus});
      *control.as<StepControl>() = {.loss_scale = loss_scale};
      cuda_clip_gradients(
          stream_, {.sums = sums.as<double>(), .most_norm = most, .control = control.as<StepControl>()});
      EXPECT_FLOAT_EQ(control.as<StepControl>()->clip, cpus.clip) << most << " at " << loss_scale;
      EXPECT_EQ(control.as<StepControl>()->clip < 1, most < 2.33 / double{loss_scale}) << most;
    }
  }
}

TEST_F(CudaUpdates, AveragingEqualsTheCpu) {
  const DeviceMemory control(sizeof(StepControl));
  for (const std::int64_t count : kUpdateCounts) {
    for (const std::size_t misaligned : {0, 4}) {
      const Values before = random_values(count, "average");
      const DeviceMemory value(random_values(count, "value"), DType::f32, misaligned);
      DeviceMemory average(before, DType::f32, misaligned);
      for (const std::int64_t step : {2, 3, 100000}) {
        for (const std::int32_t finite : {1, 0}) {
          *control.as<StepControl>() = {.step = step, .finite = finite};
          Values expected = before;
          cpu_.average_values(stream_, {.control = control.as<StepControl>(),
                                        .decay = 0.99,
                                        .count = count,
                                        .value = value.as<float>(),
                                        .average = expected.data()});
          EXPECT_EQ(expected == before, finite == 0);
          const Values found = in_any_order([&] {
            average.write(before, DType::f32);
            cuda_average_values(stream_, {.control = control.as<StepControl>(),
                                          .decay = 0.99,
                                          .count = count,
                                          .value = value.as<float>(),
                                          .average = average.as<float>()});
            return average.values(DType::f32);
          });
          expect_near(found, widen(expected), 1e-6, 1e-7);
          EXPECT_TRUE(finite == 1 || found == before);
        }
      }
    }
  }
}

TEST_F(CudaUpdates, SwapExchangesValues) {
  for (const std::int64_t count : kUpdateCounts) {
    for (const std::size_t misaligned : {0, 4}) {
      const Values ones = random_values(count, "ones"), others = random_values(count, "others");
      const DeviceMemory one(ones, DType::f32, misaligned), other(others, DType::f32);
      cuda_swap_values(stream_, {.count = count, .values = one.as<float>(), .others = other.as<float>()});
      EXPECT_EQ(one.values(DType::f32), others);
      EXPECT_EQ(other.values(DType::f32), ones);
    }
  }
}

TEST_F(CudaUpdates, StepCountAndLossScaleEqualTheCpu) {
  const LossScaleRule rule{.growth = 2, .backoff = 0.5f, .interval = 3};
  const DeviceMemory control(sizeof(StepControl));
  auto* emulated_control = control.as<StepControl>();
  StepControl cpus{.loss_scale = 1024};
  *emulated_control = cpus;
  for (const std::int32_t finite : {1, 1, 1, 1, 0, 0, 1, 1, 1, 1}) {
    emulated_control->finite = cpus.finite = finite;
    cuda_finish_step(stream_, rule, emulated_control);
    cpu_.finish_step(stream_, rule, &cpus);
    EXPECT_EQ(emulated_control->step, cpus.step);
    EXPECT_EQ(emulated_control->loss_scale, cpus.loss_scale);
    EXPECT_EQ(emulated_control->good_steps, cpus.good_steps);
  }
  EXPECT_EQ(cpus.step, 9);
  EXPECT_EQ(cpus.loss_scale, 1024.0f);  // doubled once, halved twice, doubled again
}

}  // namespace
}  // namespace lockstep
