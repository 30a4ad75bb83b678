// SPDX-License-Identifier: Apache-2.0
//
// StepResults: the results of each step, copied to pinned host memory in stream order. The host reads them
// when the device has completed the step.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "kernels/loss.h"
#include "kernels/update.h"

namespace lockstep {

struct StepResult {
  std::span<const LossSums> losses;  // by micro-batch
  StepControl control;               // after the step; finite: 0 if the step was skipped
  // kSquareSums partial sums of squares, of gradients times loss scale; empty if not requested.
  std::span<const double> gradient_squares;
};
// Norm of the gradients without the loss scale; NaN if not requested.
double gradient_norm(const StepResult& result, double loss_scale);
bool losses_are_finite(const StepResult& result);

class StepResults {
 public:
  StepResults(Device device, std::int64_t micro_batches);

  // Where the step that is being enqueued writes the loss of a micro-batch.
  LossSums* loss(StepSlot slot, std::int64_t micro_batch);
  // Enqueues the copy of the control; the last work of the step.
  void copy_control(Stream& stream, StepSlot slot, const StepControl* control);
  // Sets whether the step that is about to be enqueued, or replayed, computes the norm of its gradients.
  void ask_for_norm(StepSlot slot, bool asked) { slots_[slot.index].norm = asked; }
  bool norm_asked(StepSlot slot) const { return slots_[slot.index].norm; }
  // Device memory for the kSquareSums partial sums; copy_gradient_squares() then enqueues their copy to the
  // host.
  double* gradient_squares() const { return reinterpret_cast<double*>(squares_.data()); }
  void copy_gradient_squares(Stream& stream, StepSlot slot);
  // Call when all work of the step is on the stream.
  void enqueued(Stream& stream, StepSlot slot);

  // The result of the last step with this slot; waits for the device. Valid until the next step with this
  // slot is enqueued.
  StepResult result(StepSlot slot);

 private:
  struct Slot {
    Slot(std::int64_t micro_batches, Device device);
    StepControl* control() const { return reinterpret_cast<StepControl*>(memory.data()); }
    LossSums* losses() const {
      return reinterpret_cast<LossSums*>(memory.data() + align_up(sizeof(StepControl)));
    }
    Buffer memory;
    Buffer squares;
    Event done;
    bool norm = false;
  };

  std::int64_t micro_batches_;
  std::array<Slot, StepSlot::kCount> slots_;
  Buffer squares_;
};

}  // namespace lockstep
