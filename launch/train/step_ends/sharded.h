// SPDX-License-Identifier: Apache-2.0
//
// ShardedEnd: each rank has the sums of its share of every bucket, updates the parameters there, and sends
// them to all ranks, share by share while it updates the next one. The step waits for the last of them, so
// every rank has all parameters between steps. The optimizer's state exists only once among the ranks.
#pragma once

#include "launch/train/step_ends/synchronous.h"

namespace lockstep {

class ShardedEnd final : public SynchronousEnd {
 public:
  explicit ShardedEnd(const StepEndParts& parts)
      : SynchronousEnd(parts, {.skip_restores_state = true, .keeps_gradients = false}) {}

  StepPlan begin_step(const StepPlace& place) override;

 private:
  void run_optimizer(const StepPlace& place) override;
};

}  // namespace lockstep
