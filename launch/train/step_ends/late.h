// SPDX-License-Identifier: Apache-2.0
//
// LateEnd: a step takes the gradients of the step before, which are exchanged during it: see
// DelayedGradients. They are judged then, so the result of a step is known one step later.
#pragma once

#include "launch/train/step_ends/delayed_gradients.h"
#include "launch/train/step_ends/step_end.h"

namespace lockstep {

class LateEnd final : public StepEnd {
 public:
  explicit LateEnd(const StepEndParts& parts);

  std::int64_t first_exchange() const override { return 1; }
  bool holds_gradients(std::int64_t) const override { return false; }  // they hold those for the next step
  // With a dynamic loss scale, two scales alternate.
  bool has_norm() const override {
    return delayed_.under_way() && !parts_.optimizer.loss_scale_options().dynamic();
  }
  bool exchanges(const StepPlace&) const override { return delayed_.under_way(); }
  void before_forward(const StepPlace& place) override;
  bool buckets_leave(const StepPlace&) const override { return false; }
  void behind_backward(const StepPlace& place) override;
  void end_step(const StepPlace& place) override;
  StepVerdict judge(std::int64_t number, const StepResult& result, float scale_before) override;
  void visit_state(StateVisitor& visitor) override { delayed_.visit_state(visitor, parts_.stream); }

 private:
  DelayedGradients delayed_;
  bool loss_was_finite_ = true;  // this rank's, in the last settled step
};

}  // namespace lockstep
