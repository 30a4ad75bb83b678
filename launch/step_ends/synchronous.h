// SPDX-License-Identifier: Apache-2.0
//
// SynchronousEnd: the plain way. Buckets have left while backward went on; the step waits for the last of
// them and takes the averages.
#pragma once

#include "launch/step_ends/step_end.h"

namespace lockstep {

class SynchronousEnd : public StepEnd {
 public:
  using StepEnd::StepEnd;
  bool leaves_skipped_step_as_it_was() const override { return true; }
  void behind_backward(const StepPlace& place) override;

 protected:
  // update(), and what the batch did to running statistics is taken back where the step is skipped.
  void take_gradients(const StepPlace& place);
};

}  // namespace lockstep
