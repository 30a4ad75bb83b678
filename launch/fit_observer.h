// SPDX-License-Identifier: Apache-2.0
//
// FitObserver: called between the steps of a training. It may read the state, and stop the training.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

struct Evaluation;

class FitObserver {
 public:
  virtual ~FitObserver() = default;
  // Collective; called after every step. False, on all ranks alike: training stops here, without an
  // evaluation.
  virtual bool goes_on() = 0;
  // Not collective; called between two steps if ranks do not wait for each other (Trainer::in_lockstep() is
  // false). True: the ranks end the epoch early and then call goes_on().
  virtual bool wants_to_meet() { return false; }
  // Collective; called after an epoch was reported and, if due, evaluated. train.steps may have cut it short.
  // evaluation: nullopt if none was due.
  virtual void epoch_over(const std::optional<Evaluation>& evaluation) = 0;
  // Collective; called after an evaluation within an epoch (TrainerOptions::evaluate_every), before its next
  // step.
  virtual void evaluated_within() {}

  // Collective; called when a step with gradients that are not finite ends the training. An observer that
  // injected the fault undoes it.
  virtual void step_failed() {}
  // Collective; called after step_failed(), when the trainer holds the last good state. Returns text for the
  // error message that says where the state was saved; empty: nowhere.
  virtual std::string save_last_good() { return {}; }
};

// Base of chained observers: calls that are not overridden go to `then`, which outlives this.
class PassingObserver : public FitObserver {
 public:
  explicit PassingObserver(FitObserver& then) : then_(then) {}
  bool goes_on() override { return then_.goes_on(); }
  bool wants_to_meet() override { return then_.wants_to_meet(); }
  void epoch_over(const std::optional<Evaluation>& evaluation) override { then_.epoch_over(evaluation); }
  void evaluated_within() override { then_.evaluated_within(); }
  void step_failed() override { then_.step_failed(); }
  std::string save_last_good() override { return then_.save_last_good(); }

 protected:
  FitObserver& then_;
};

}  // namespace lockstep
