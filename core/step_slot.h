// SPDX-License-Identifier: Apache-2.0
//
// StepSlot: selects the memory for data that differ from step to step. While a device computes one step, the
// host prepares the next: batches, learning rate, results and moments use two slots in turn. Recorded work
// holds the addresses of one slot. The caller that enqueues steps passes the same slot to all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct StepSlot {
  static constexpr std::size_t kCount = 2;
  // step: the number of enqueued steps.
  static constexpr StepSlot of(std::int64_t step) { return {static_cast<std::size_t>(step) % kCount}; }

  std::size_t index = 0;
};

}  // namespace lockstep
