// SPDX-License-Identifier: Apache-2.0
//
// CrossingEnd: the exchange of a step ends within the next one's forward pass: see CrossBarrier. Steps before
// an evaluation, and the first ones, which are timed, end as synchronous ones do.
#pragma once

#include "launch/train/step_ends/cross_barrier.h"
#include "launch/train/step_ends/synchronous.h"

namespace lockstep {

class CrossingEnd final : public SynchronousEnd {
 public:
  explicit CrossingEnd(const StepEndParts& parts);

  StepPlan begin_step(const StepPlace& place) override;
  void before_forward(const StepPlace&) override { barrier_.keep_statistics(parts_.stream); }
  void after_backward(const StepPlace& place) override;
  void end_step(const StepPlace& place) override;
  void finish() override { barrier_.finish(); }
  void learn(const Ledger& ledger) override { barrier_.learn(ledger, parts_.communicator.host()); }

 private:
  CrossBarrier barrier_;
};

}  // namespace lockstep
