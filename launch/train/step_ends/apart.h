// SPDX-License-Identifier: Apache-2.0
//
// ApartEnd: each rank applies its own gradients, and ranks average their parameters every few steps: see
// LocalSgd. Steps before the first local one are synchronous.
#pragma once

#include "launch/train/step_ends/local_sgd.h"
#include "launch/train/step_ends/synchronous.h"

namespace lockstep {

class ApartEnd : public SynchronousEnd {
 public:
  ApartEnd(const StepEndParts& parts, const LocalSgdOptions& options);

  StepPlan begin_step(const StepPlace& place) override;
  void after_backward(const StepPlace& place) override;

  std::optional<StepFailure> failure(const StepVerdict& verdict, bool fatal, StepSlot slot) override;
  std::optional<StepFailure> share_state(StateUse use, std::int64_t steps) override;
  // Waits, because the visitor writes to the network on another stream.
  void keep_own_parameters() override {
    local_.leave_average(parts_.stream);
    parts_.stream.synchronize();
  }
  void visit_state(StateVisitor& visitor) override { local_.visit_state(visitor, parts_.stream); }

 protected:
  LocalSgd& local() { return local_; }

 private:
  std::optional<StepFailure> failure_of_a_rank(std::int64_t step, bool average_is_finite);

  LocalSgd local_;
  // This rank's first failure since the last average, which other ranks do not know yet; step 0: none.
  // Restoring a state does not reset it.
  StepFailure failed_;
};

}  // namespace lockstep
