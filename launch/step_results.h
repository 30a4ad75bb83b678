// SPDX-License-Identifier: Apache-2.0
//
// StepResults: what the host wants to know of each step, copied to pinned memory in stream order. It is
// looked at when the device is done with it: on a CPU at once, on a GPU one step later, so that the host
// never waits for a step it has just enqueued. The lag is fixed: every rank learns of a step at the same
// point of its loop.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/buffer.h"
#include "core/stream.h"
#include "kernels/loss.h"
#include "kernels/update.h"

namespace lockstep {

struct StepResult {
  std::int64_t step = 0;             // counts enqueued steps, from 0
  std::span<const LossSums> losses;  // of each micro-batch
  StepControl control;               // after the step; finite: whether it was done
};

class StepResults {
 public:
  StepResults(Device device, std::int64_t micro_batches);

  // Where the loss of a micro-batch of the step that is being enqueued shall go.
  LossSums* loss(std::int64_t micro_batch);
  // The last work of the step.
  void copy_control(Stream& stream, const StepControl* control);
  // All of the step is on the stream.
  void enqueued(Stream& stream);

  // The oldest step not taken, once more steps than the lag are enqueued; waits for the device. Valid until
  // loss() is called next.
  std::optional<StepResult> take() { return take_beyond(lag_); }
  // The same without lag: after the last step of an epoch.
  std::optional<StepResult> take_last() { return take_beyond(0); }

 private:
  struct Slot {
    Slot(std::int64_t micro_batches, Device device);
    StepControl* control() const { return reinterpret_cast<StepControl*>(memory.data()); }
    LossSums* losses() const {
      return reinterpret_cast<LossSums*>(memory.data() + align_up(sizeof(StepControl)));
    }
    Buffer memory;
    Event done;
  };

  std::optional<StepResult> take_beyond(std::int64_t lag);
  Slot& slot_of(std::int64_t step) { return slots_[static_cast<std::size_t>(step % 2)]; }

  std::int64_t lag_;
  std::int64_t micro_batches_;
  std::array<Slot, 2> slots_;
  std::int64_t enqueued_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace lockstep
