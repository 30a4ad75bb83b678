// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the optimizer update tests: one optimizer's guarded memory, and a step of each kind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"
#include "tests/thinning.h"

namespace lockstep {

// Sizes around vector widths, chunks, and the size from which several threads work.
inline constexpr std::int64_t kCounts[] = {
    1, 3, 15, 17, 1000, kUpdateChunk - 1, kUpdateChunk, 16383, 16384, 100001 / kOneOf};
inline constexpr int kSteps = 4;

using Segments = std::vector<UpdateSegment>;

inline Values gradient_of(std::int64_t count, int step) {
  return random_values(count, "gradient " + std::to_string(step));
}

class UpdateTest : public testing::Test {
 protected:
  struct Memory {
    explicit Memory(std::int64_t elements)
        : count(elements),
          value(random_values(elements, "value")),
          first(Values(static_cast<std::size_t>(elements), 0.0f)),
          second(Values(static_cast<std::size_t>(elements), 0.0f)) {}
    bool margins_intact() const {
      return value.margin_intact() && first.margin_intact() && second.margin_intact();
    }
    bool operator==(const Memory& other) const {
      return value.values() == other.value.values() && first.values() == other.first.values() &&
             second.values() == other.second.values();
    }
    std::int64_t count;
    GuardedMemory value, first, second;
  };
  // The arguments of one call that are not in Memory.
  struct Call {
    const void* gradient = nullptr;
    DType gradient_type = DType::f32;
    StepControl control = {};
    void* copy = nullptr;
    DType copy_type = DType::f16;
    bool state_stays = false;
  };
  using Step = std::function<void(const UpdateTable&, Memory&, Call)>;

  static Update update_of(const UpdateTable& table, Memory& memory, const Call& call) {
    return {.table = table,
            .value = memory.value.floats(),
            .gradient = call.gradient,
            .gradient_type = call.gradient_type,
            .copy = call.copy,
            .copy_type = call.copy_type,
            .control = &call.control,
            .state_stays = call.state_stays};
  }

  const Step sgd = [this](const UpdateTable& table, Memory& memory, Call call) {
    call.control.learning_rate = 0.1;
    backend_.update(stream_, update_of(table, memory, call),
                    SgdUpdate{.momentum_buffer = memory.first.floats(), .momentum = 0.9f});
  };
  const Step nesterov = [this](const UpdateTable& table, Memory& memory, Call call) {
    call.control.learning_rate = 0.1;
    backend_.update(stream_, update_of(table, memory, call),
                    SgdUpdate{.momentum_buffer = memory.first.floats(), .momentum = 0.9f, .nesterov = true});
  };
  const Step adamw = [this](const UpdateTable& table, Memory& memory, Call call) {
    call.control.learning_rate = 0.01;
    backend_.update(
        stream_, update_of(table, memory, call),
        AdamWUpdate{.first_moment = memory.first.floats(), .second_moment = memory.second.floats()});
  };
  const Step lars = [this](const UpdateTable& table, Memory& memory, Call call) {
    call.control.learning_rate = 5.0;
    std::vector<SquaredNorms> norms(table.chunks().size());
    trust_ratios_.assign(table.segments().size(), -1.0f);
    backend_.update(stream_, update_of(table, memory, call),
                    LarsUpdate{.momentum_buffer = memory.first.floats(),
                               .norms = norms,
                               .trust_ratios = trust_ratios_,
                               .momentum = 0.9f,
                               .trust_coefficient = 0.02f});
  };

  void run(const Step& step, const Segments& segments, Memory& memory) {
    const UpdateTable table({}, segments);
    for (int i = 1; i <= kSteps; ++i) {
      const Values plain = gradient_of(memory.count, i);
      const GuardedMemory gradient(plain);
      step(table, memory, {.gradient = gradient.data(), .control = {.step = i}});
      EXPECT_EQ(gradient.values(), plain);
    }
    EXPECT_TRUE(memory.margins_intact());
  }

  Backend& backend_ = backend_for(Device{});
  Stream stream_{Device{}, StreamUse::compute};
  std::vector<float> trust_ratios_;
};

}  // namespace lockstep
