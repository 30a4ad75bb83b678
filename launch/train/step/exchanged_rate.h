// SPDX-License-Identifier: Apache-2.0
//
// ExchangedRate: a step's learning rate in device memory, for exchanges that keep what they do not send
// (GradientUnit::learning_rate). They read it before the optimizer does.
#pragma once

#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class ExchangedRate {
 public:
  // highest: the largest rate of all steps. Smaller rates are raised to at least a hundredth of it: values
  // divided by a rate near the end of a cosine would overflow fp16 and exceed any bound on gradients.
  ExchangedRate(Device device, double highest);

  // Sets the rate of this slot's steps until the next call: see Optimizer::set_learning_rate().
  void set(StepSlot slot, double rate);
  // Copies the rate to the device; returns its address, valid until the next step with this slot.
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
