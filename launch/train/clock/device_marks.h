// SPDX-License-Identifier: Apache-2.0
//
// DeviceMarks: a GPU's progress in its enqueued steps, for another thread to read while the training thread
// waits for the device. After backward, a step's work, recorded or not, writes a mark to host memory. A CPU
// needs no marks: the host runs its steps.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "comm/watchdog/rank_status.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class DeviceMarks {
 public:
  // For steps on this stream; synchronizes it.
  explicit DeviceMarks(Stream& stream);

  // Call before a step, numbered from 1, is enqueued. The last step with its slot has ended.
  void begin(StepSlot slot, std::int64_t step);
  // Call when all work of the step's backward pass is on the stream. May be recorded.
  void after_backward(Stream& stream, StepSlot slot);
  // Call when the host knows that the step has ended.
  void ended(StepSlot slot);

  // Called by any thread.
  DevicePlace place() const;

 private:
  std::uint32_t* mark(std::size_t slot) const {
    return reinterpret_cast<std::uint32_t*>(marks_.data() + slot * kAlignment);
  }

  Buffer one_;    // on the device: source of the copies
  Buffer marks_;  // in host memory, a line for each slot: 0, then 1. Empty on a CPU
  std::array<std::atomic<std::int64_t>, StepSlot::kCount> steps_ = {};  // from 1; 0: none under way
};

}  // namespace lockstep
