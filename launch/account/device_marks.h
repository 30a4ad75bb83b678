// SPDX-License-Identifier: Apache-2.0
//
// DeviceMarks: how far a GPU has got with the steps that it was given, for whoever looks on from another
// thread while the one that trains waits for it: behind backward a step's work, recorded or not, leaves a
// mark in memory of the host. On a CPU there is nothing to mark: its steps are the host's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "comm/watchdog/rank_status.h"
#include "core/buffer.h"
#include "core/step_slot.h"
#include "core/stream.h"

namespace lockstep {

class DeviceMarks {
 public:
  // Of steps on this stream, for which it waits.
  explicit DeviceMarks(Stream& stream);

  // A step, from 1, is enqueued next; the last one with its slot has ended.
  void begin(StepSlot slot, std::int64_t step);
  // All work of the step's backward pass is on the stream. May be recorded.
  void behind_backward(Stream& stream, StepSlot slot);
  // The host knows that it has ended.
  void ended(StepSlot slot);

  // Any thread.
  DevicePlace place() const;

 private:
  std::uint32_t* mark(std::size_t slot) const {
    return reinterpret_cast<std::uint32_t*>(marks_.data() + slot * kAlignment);
  }

  Buffer one_;    // of the device: what it copies
  Buffer marks_;  // of the host, a line for each slot: 0, and then 1. Empty on a CPU
  std::array<std::atomic<std::int64_t>, StepSlot::kCount> steps_ = {};  // from 1; 0: none under way
};

}  // namespace lockstep
