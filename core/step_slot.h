// SPDX-License-Identifier: Apache-2.0
//
// StepSlot: where a step's work finds what is not the same in every step. While a device computes a step, the
// host prepares the next one: batches, learning rate, results and moments lie in one of two places, which
// take turns, and work that is recorded knows one of them by its addresses. Whoever enqueues steps says
// which, to all alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct StepSlot {
  static constexpr std::size_t kCount = 2;
  // step counts enqueued steps.
  static constexpr StepSlot of(std::int64_t step) { return {static_cast<std::size_t>(step) % kCount}; }

  std::size_t index = 0;
};

}  // namespace lockstep
