// SPDX-License-Identifier: Apache-2.0
//
// RingEnd: each rank takes its own gradients and averages parameters with its neighbours without waiting: see
// Gossip. Ranks meet when an epoch is evaluated.
#pragma once

#include "launch/train/step_ends/apart.h"
#include "launch/train/step_ends/gossip.h"

namespace lockstep {

class RingEnd final : public ApartEnd {
 public:
  explicit RingEnd(const StepEndParts& parts);

  bool in_lockstep() const override { return false; }
  void begin_epoch(std::int64_t first, std::int64_t end) override;
  std::optional<std::int64_t> next_step(std::int64_t stands_at, std::int64_t end) override;
  void give_up_epoch() override { gossip_.give_up_epoch(); }
  std::vector<std::int64_t> end_epoch() override;
  void behind_backward(const StepPlace& place) override;
  std::optional<StepFailure> show_evaluated(std::int64_t steps) override;

 private:
  Gossip gossip_;
};

}  // namespace lockstep
