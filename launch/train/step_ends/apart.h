// SPDX-License-Identifier: Apache-2.0
//
// ApartEnd: each rank takes its own gradients, and ranks average their parameters every few steps: see
// LocalSgd. Steps before the first local one are synchronous.
#pragma once

#include "launch/train/step_ends/local_sgd.h"
#include "launch/train/step_ends/synchronous.h"

namespace lockstep {

class ApartEnd : public SynchronousEnd {
 public:
  ApartEnd(const StepEndParts& parts, const LocalSgdOptions& options);

  StepKind kind_of(std::int64_t step) const override { return local_.kind_of(step); }
  bool judges_alone() const override { return true; }
  bool skip_restores_state() const override { return false; }
  void begin_step(const StepPlace& place) override { local_.begin_step(parts_.stream, place.step); }
  // An averaging step overwrites them with differences of parameters.
  bool holds_gradients(std::int64_t step) const override { return kind_of(step) != StepKind::averaging; }
  bool exchanges(const StepPlace& place) const override { return kind_of(place.step) != StepKind::local; }
  bool buckets_leave(const StepPlace& place) const override {
    return kind_of(place.step) == StepKind::synchronous;
  }
  void behind_backward(const StepPlace& place) override;

  std::optional<StepFailure> failure(const StepVerdict& verdict, bool fatal, StepSlot slot) override;
  std::optional<StepFailure> show_evaluated(std::int64_t steps) override;
  void show_saved(std::int64_t steps) override;
  bool show_last_average(std::int64_t step) override;
  void visit_state(StateVisitor& visitor) override;

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
