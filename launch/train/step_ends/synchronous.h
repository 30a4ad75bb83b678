// SPDX-License-Identifier: Apache-2.0
//
// SynchronousEnd: the default. Buckets are sent during backward; the step waits for the last of them and
// applies the averages.
#pragma once

#include "launch/train/step_ends/step_end.h"

namespace lockstep {

class SynchronousEnd : public StepEnd {
 public:
  explicit SynchronousEnd(const StepEndParts& parts,
                          const StepEndTraits& traits = {.skip_restores_state = true})
      : StepEnd(parts, traits) {}

  void after_backward(const StepPlace& place) override;

 protected:
  // update(); a skipped step also restores the running statistics from before it.
  void apply_gradients(const StepPlace& place);
};

}  // namespace lockstep
