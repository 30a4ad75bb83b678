// SPDX-License-Identifier: Apache-2.0
//
// ExchangedRate: the learning rate of a step in memory of the device, before the optimizer takes it, for
// exchanges that keep what they do not send (GradientUnit::learning_rate).
#pragma once

#include "core/buffer.h"
#include "core/step_slot.h"
#include "core/stream.h"

namespace lockstep {

class ExchangedRate {
 public:
  // highest: of all steps. A rate is taken for no less than a hundredth of it: at the end of a cosine what is
  // divided by it would else be too large for fp16, and for any bound on gradients.
  ExchangedRate(Device device, double highest);

  // Of the steps with this slot, until it is set again: see Optimizer::set_learning_rate().
  void set(StepSlot slot, double rate);
  // Where the rate lies behind what this enqueues, until the next step with this slot.
  const float* enqueue(Stream& stream, StepSlot slot);

 private:
  static float* at(const Buffer& memory, StepSlot slot) {
    return reinterpret_cast<float*>(memory.data()) + slot.index;
  }

  double least_;
  Buffer host_;  // pinned
  Buffer device_;
};

}  // namespace lockstep
