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

  bool crosses() const override { return true; }
  bool has_norm() const override { return false; }
  bool skip_restores_state() const override { return false; }  // keeps the changed optimizer state
  void before_forward(const StepPlace&) override { barrier_.keep_statistics(parts_.stream); }
  ParameterGate* gate() override { return barrier_.gate(); }
  void behind_forward() override { barrier_.finish(); }
  void behind_backward(const StepPlace& place) override;
  void end_step(const StepPlace& place) override;

  bool learns() const override { return barrier_.learns(); }
  void learn(const Ledger& ledger) override { barrier_.learn(ledger, parts_.communicator.host()); }
  void learn_again() override { barrier_.learn_again(); }
  void finish() override { barrier_.finish(); }

 private:
  CrossBarrier barrier_;
};

}  // namespace lockstep
