// SPDX-License-Identifier: Apache-2.0
//
// SynchronousEnd: the default way. Buckets leave during backward; the step waits for the last of them and
// takes the averages.
#pragma once

#include "launch/train/step_ends/step_end.h"

namespace lockstep {

class SynchronousEnd : public StepEnd {
 public:
  using StepEnd::StepEnd;
  bool skip_restores_state() const override { return true; }
  void behind_backward(const StepPlace& place) override;

 protected:
  // update(); a skipped step also restores the running statistics from before it.
  void take_gradients(const StepPlace& place);
};

}  // namespace lockstep
