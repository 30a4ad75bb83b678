// SPDX-License-Identifier: Apache-2.0
//
// Updates in mixed precision: 16-bit gradients of a scaled loss, the 16-bit copy, and skipped steps.
#include <gtest/gtest.h>

#include "tests/kernels/update_fixture.h"

namespace lockstep {
namespace {

using MixedUpdate = UpdateTest;

// The result equals that of unscaled fp32 gradients, and the copy equals the rounded values.
TEST_F(MixedUpdate, SixteenBitGradientsAreDividedByTheLossScale) {
  constexpr float kScale = 1024;
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const std::int64_t count : kCounts) {
      SCOPED_TRACE(fmt::format("{} of {}", count, name_of(type)));
      const UpdateTable table({}, Segments{{.count = count, .weight_decay = 0.1f, .adaptive = true}});
      for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
        Memory memory(count), expected(count);
        const GuardedMemory copy(static_cast<std::size_t>(count) * 2, type);
        for (int i = 1; i <= kSteps; ++i) {
          Values scaled = gradient_of(count, i);
          for (float& gradient : scaled) gradient *= kScale;
          scaled = rounded(scaled, type);
          const GuardedMemory halves(scaled, type);
          Values plain = scaled;
          for (float& gradient : plain) gradient /= kScale;
          (*step)(table, memory,
                  {.gradient = halves.data(),
                   .gradient_type = type,
                   .control = {.step = i, .loss_scale = kScale},
                   .copy = copy.data(),
                   .copy_type = type});
          EXPECT_EQ(copy.values(), rounded(memory.value.values(), type));
          (*step)(table, expected, {.gradient = plain.data(), .control = {.step = i}});
        }
        EXPECT_TRUE(memory.margins_intact() && copy.margin_intact());
        if (step != &lars) {
          EXPECT_TRUE(memory == expected);
          continue;
        }
        const Values values = memory.value.values();  // norms are summed in another order
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(values[i], expected.value.floats()[i], 1e-6) << i;
      }
    }
  }
}

TEST_F(MixedUpdate, FloatGradientsAreDividedByTheLossScale) {
  constexpr std::int64_t kCount = 1000;
  const UpdateTable table({}, Segments{{.count = kCount, .adaptive = true}});
  const Values plain = gradient_of(kCount, 1);
  Values scaled = plain;
  for (float& gradient : scaled) gradient *= 4096;
  for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
    Memory memory(kCount), expected(kCount);
    (*step)(table, memory, {.gradient = scaled.data(), .control = {.loss_scale = 4096}});
    (*step)(table, expected, {.gradient = plain.data()});
    EXPECT_TRUE(memory == expected);
  }
}

TEST_F(MixedUpdate, ElementsInNoSegmentKeepTheirCopy) {
  const UpdateTable table({}, Segments{{.begin = 3, .count = 5}, {.begin = 40, .count = 1500}});
  const Values gradient = gradient_of(1600, 1);
  for (const DType type : {DType::f16, DType::bf16}) {
    Memory memory(1600);
    const Values before = rounded(random_values(1600, "copy"), type);
    const GuardedMemory copy(before, type);
    sgd(table, memory, {.gradient = gradient.data(), .copy = copy.data(), .copy_type = type});
    const Values after = copy.values(), values = rounded(memory.value.values(), type);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const bool inside = (i >= 3 && i < 8) || (i >= 40 && i < 1540);
      ASSERT_EQ(after[i], inside ? values[i] : before[i]) << i;
    }
  }
}

TEST_F(MixedUpdate, ASkippedStepChangesNothing) {
  constexpr std::int64_t kCount = 20001;
  const UpdateTable table({}, Segments{{.count = kCount, .weight_decay = 0.1f, .adaptive = true}});
  for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
    Memory memory(kCount);
    run(*step, {{.count = kCount}}, memory);  // makes the state nonzero
    Memory before(kCount);
    before.value = GuardedMemory(memory.value.values());
    before.first = GuardedMemory(memory.first.values());
    before.second = GuardedMemory(memory.second.values());
    const Values copied = rounded(random_values(kCount, "copy"), DType::f16);
    const GuardedMemory copy(copied, DType::f16);
    GuardedMemory gradient(static_cast<std::size_t>(kCount) * 2, DType::f16);  // NaNs
    (*step)(table, memory,
            {.gradient = gradient.data(),
             .gradient_type = DType::f16,
             .control = {.step = 5, .loss_scale = 65536, .finite = 0},
             .copy = copy.data()});
    EXPECT_TRUE(memory == before);
    EXPECT_EQ(copy.values(), copied);
    EXPECT_TRUE(memory.margins_intact() && copy.margin_intact());
  }
}

// The values and their copies equal those after the step.
TEST_F(MixedUpdate, AStepThatKeepsItsStateChangesOnlyValues) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t count : kCounts) {
      const Segments segments{{.count = count, .weight_decay = 0.1f, .adaptive = true}};
      const UpdateTable table({}, segments);
      const GuardedMemory gradient(gradient_of(count, 9), type);
      for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
        Memory memory(count);
        run(*step, segments, memory);
        const Values value = memory.value.values(), first = memory.first.values(),
                     second = memory.second.values();
        const DType copy_type = type == DType::f32 ? DType::f16 : type;
        const GuardedMemory copy(static_cast<std::size_t>(count) * 2, copy_type);
        Call call{.gradient = gradient.data(),
                  .gradient_type = type,
                  .control = {.step = kSteps + 1, .loss_scale = 2},
                  .copy = copy.data(),
                  .copy_type = copy_type,
                  .state_stays = true};
        (*step)(table, memory, call);
        EXPECT_EQ(memory.first.values(), first);
        EXPECT_EQ(memory.second.values(), second);
        const Values ahead = memory.value.values();
        EXPECT_EQ(copy.values(), rounded(ahead, copy_type));
        memory.value = GuardedMemory(value);
        call.state_stays = false;
        (*step)(table, memory, call);
        EXPECT_EQ(memory.value.values(), ahead) << count << " of " << name_of(type);
        EXPECT_NE(memory.first.values(), first);
      }
    }
  }
}

TEST_F(MixedUpdate, TheLossScaleGrowsAfterGoodStepsAndBacksOffOnASkippedOne) {
  const LossScaleRule rule{.growth = 2, .backoff = 0.5f, .interval = 3};
  StepControl control{.step = 1, .loss_scale = 1024};
  const auto finish = [&](bool finite) {
    control.finite = finite ? 1 : 0;
    backend_.finish_step(stream_, rule, &control);
  };
  finish(true);
  finish(true);
  EXPECT_EQ(control.loss_scale, 1024);
  EXPECT_EQ(control.step, 3);
  finish(false);
  EXPECT_EQ(control.loss_scale, 512);
  EXPECT_EQ(control.step, 3) << "a skipped step counts";
  finish(true);
  finish(true);
  EXPECT_EQ(control.loss_scale, 512) << "steps before the skipped one count";
  finish(true);
  EXPECT_EQ(control.loss_scale, 1024);
  EXPECT_EQ(control.step, 6);
  for (int i = 0; i < 3; ++i) finish(true);
  EXPECT_EQ(control.loss_scale, 2048);
}

// After any number of applied or skipped steps the scale and its reciprocal are normal fp32 numbers.
TEST_F(MixedUpdate, TheLossScaleStaysBetweenItsLimits) {
  const LossScaleRule rule{.interval = 1};
  for (const float initial : {1024.0f, 0x1p24f, 0x1p-10f, 1e30f, 0.001f}) {
    StepControl control{.loss_scale = initial};
    for (int i = 0; i < 1000; ++i) backend_.finish_step(stream_, rule, &control);
    if (initial > 0x1p24f) {
      EXPECT_EQ(control.loss_scale, initial);
    } else {
      EXPECT_LE(control.loss_scale, 0x1p24f);
      EXPECT_GT(control.loss_scale, 0x1p23f);
    }
    control.finite = 0;
    for (int i = 0; i < 1000; ++i) backend_.finish_step(stream_, rule, &control);
    EXPECT_EQ(control.loss_scale, 0x1p-10f) << initial;
    control.finite = 1;
    backend_.finish_step(stream_, rule, &control);
    EXPECT_EQ(control.loss_scale, 0x1p-9f) << initial;
  }
}

TEST_F(MixedUpdate, WithoutAnIntervalTheLossScaleStays) {
  StepControl control{.loss_scale = 128};
  for (const std::int32_t finite : {1, 0, 1, 1}) {
    control.finite = finite;
    backend_.finish_step(stream_, {}, &control);
  }
  EXPECT_EQ(control.loss_scale, 128);
  EXPECT_EQ(control.step, 4);
}

TEST_F(MixedUpdate, RestoreUndoesASkippedStep) {
  const Values before = random_values(100, "before"), after = random_values(100, "after");
  for (const std::int32_t finite : {1, 0}) {
    const GuardedMemory from(before), to(after);
    const StepControl control{.finite = finite};
    backend_.restore_if_skipped(
        stream_, {.control = &control, .count = 100, .from = from.floats(), .to = to.floats()});
    EXPECT_EQ(to.values(), finite == 1 ? after : before);
    EXPECT_TRUE(to.margin_intact());
  }
}

}  // namespace
}  // namespace lockstep
