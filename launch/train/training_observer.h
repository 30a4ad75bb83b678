// SPDX-License-Identifier: Apache-2.0
//
// TrainingObserver: receives the records of a training between its steps, and may stop it. Reports,
// checkpoints and watches are observers. Trainer::fit() calls them in the order of its list, except for
// before_step(). All calls come from the training thread.
#pragma once

#include <cstdint>
#include <string>

#include "launch/train/training_records.h"

namespace lockstep {

class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;

  // Collective. Called before each step, in reverse order of the list: a later observer's before_step() and
  // goes_on() enclose an earlier one's and the step. Where ranks do not wait for each other
  // (Trainer::in_lockstep() is false) not collective, and called before the first step of an epoch only; a
  // rank that takes no step gets no call.
  virtual void before_step() {}
  // Not collective. Called after every step.
  virtual void step_done(const StepRecord&) {}
  // Collective. Called after every step, or, where ranks do not wait for each other, after an epoch's steps.
  // False, on all ranks alike, stops training here, without an evaluation; later observers are not called.
  virtual bool goes_on() { return true; }
  // Not collective; called after every step where ranks do not wait for each other. True: the ranks end the
  // epoch early and then call goes_on().
  virtual bool wants_to_meet() { return false; }
  // Called when the results of all steps so far are known: before an evaluation within the epoch, after the
  // epoch's last step, and when training stops.
  virtual void steps_over() {}
  // Collective. Called between steps before a checkpoint copies the state, when the results of all steps so
  // far are known.
  virtual void saving() {}

  // Collective. Called before the first batch of an evaluation, with batch = 0, and after each batch. False,
  // on all ranks alike, abandons the evaluation and stops training in the state before it.
  virtual bool evaluating(std::int64_t /*batch*/, std::int64_t /*batches*/) { return true; }
  // Collective. Called after an evaluation within the epoch.
  virtual void evaluated_within(const EvaluationRecord&) {}

  // Collective. Called after the epoch's steps and steps_over(), before its evaluation. Gradients of the last
  // step may still be in the buckets (Trainer::holds_gradients()).
  virtual void epoch_trained(const EpochRecord&) {}
  // Collective. Called after the evaluation, if one is due, with the trainer at the begin of the next epoch.
  virtual void epoch_over(const EpochRecord&) {}

  // Collective; called when a step with gradients that are not finite ends the training. An observer that
  // injected the fault undoes it.
  virtual void step_failed() {}
  // Collective; called after step_failed(), when the trainer holds the last good state. Returns text for the
  // error message that says where the state was saved; empty: nowhere.
  virtual std::string save_last_good() { return {}; }
};

}  // namespace lockstep
