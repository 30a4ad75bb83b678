// SPDX-License-Identifier: Apache-2.0
//
// StepResults: what the host wants to know of each step, copied to pinned memory in stream order. It is
// looked at when the device is done with it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/buffer.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "kernels/loss.h"
#include "kernels/update.h"

namespace lockstep {

struct StepResult {
  std::span<const LossSums> losses;  // of each micro-batch
  StepControl control;               // after the step; finite: whether it was done
  // The parts of SquareSum, of gradients and their loss scale; empty where nobody asked.
  std::span<const double> gradient_squares;
};
// Of gradients that came multiplied by the scale; NaN where nobody asked.
double gradient_norm(const StepResult& result, double loss_scale);
bool losses_are_finite(const StepResult& result);

class StepResults {
 public:
  StepResults(Device device, std::int64_t micro_batches);

  // Where the loss of a micro-batch of the step that is being enqueued shall go.
  LossSums* loss(StepSlot slot, std::int64_t micro_batch);
  // The last work of the step.
  void copy_control(Stream& stream, StepSlot slot, const StepControl* control);
  // Whether the step that is about to be enqueued, or replayed, tells the norm of its gradients.
  void ask_for_norm(StepSlot slot, bool asked) { slots_[slot.index].norm = asked; }
  bool norm_asked(StepSlot slot) const { return slots_[slot.index].norm; }
  // Where the squares are to be added up, in memory of the device; then they are copied.
  double* gradient_squares() const { return reinterpret_cast<double*>(squares_.data()); }
  void copy_gradient_squares(Stream& stream, StepSlot slot);
  // All of the step is on the stream.
  void enqueued(Stream& stream, StepSlot slot);

  // Of the last step with this slot; waits for the device. Valid until the next one is enqueued.
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
