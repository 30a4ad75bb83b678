// SPDX-License-Identifier: Apache-2.0
//
// LateEnd: a step applies the gradients of the step before, which are exchanged during it: see
// DelayedGradients. They are judged then, so the result of a step is known one step later.
#pragma once

#include "launch/train/step_ends/delayed_gradients.h"
#include "launch/train/step_ends/step_end.h"

namespace lockstep {

class LateEnd final : public StepEnd {
 public:
  explicit LateEnd(const StepEndParts& parts);

  StepPlan begin_step(const StepPlace& place) override;
  void before_forward(const StepPlace& place) override;
  void after_backward(const StepPlace& place) override;
  void end_step(const StepPlace& place) override;
  StepVerdict judge(std::int64_t number, const StepResult& result, float scale_before) override;
  // A checkpoint with gradients that end the next step could never be resumed.
  std::optional<StepFailure> share_state(StateUse use, std::int64_t steps) override;
  void visit_state(StateVisitor& visitor) override;

 private:
  DelayedGradients delayed_;
  bool loss_was_finite_ = true;  // this rank's, in the last settled step
  // Loss scale of the gradients that the next step to settle judges; nullopt before the first step.
  std::optional<float> waiting_scale_;
};

}  // namespace lockstep
