// SPDX-License-Identifier: Apache-2.0
//
// RingEnd: each rank applies its own gradients and averages parameters with its neighbours without waiting:
// see Gossip. Ranks wait for each other when an epoch is evaluated.
#pragma once

#include "launch/train/step_ends/apart.h"
#include "launch/train/step_ends/gossip.h"

namespace lockstep {

class RingEnd final : public ApartEnd {
 public:
  explicit RingEnd(const StepEndParts& parts);

  SharedSteps* shared_steps() override { return &gossip_.steps(); }
  void after_backward(const StepPlace& place) override;
  std::optional<StepFailure> share_state(StateUse use, std::int64_t steps) override;

 private:
  Gossip gossip_;
};

}  // namespace lockstep
