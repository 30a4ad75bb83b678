// SPDX-License-Identifier: Apache-2.0
//
// FitObserver: who is asked between the steps of a training. It may look at the state there, and stop it.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

struct Evaluation;

class FitObserver {
 public:
  virtual ~FitObserver() = default;
  // Collective. After every step; false, on every rank alike: training stops here, without an evaluation.
  virtual bool goes_on() = 0;
  // Not collective; between two steps, where ranks do not wait for each other (Trainer::in_lockstep() is
  // false). True: the ranks end the epoch early and then call goes_on().
  virtual bool wants_to_meet() { return false; }
  // Collective. After an epoch, or as much of it as train.steps allows, was reported, and evaluated where it
  // was to be.
  virtual void epoch_over(const std::optional<Evaluation>& evaluation) = 0;
  // Collective. After an evaluation within an epoch (TrainerOptions::evaluate_every), which is before a step.
  virtual void evaluated_within() {}

  // Collective. A step cannot be made good and ends the training: whoever made that happen takes it back.
  virtual void step_failed() {}
  // Collective, behind it: the trainer stands where it stood before that step, for the last time. Returns
  // what to say of where its state is; empty: nowhere.
  virtual std::string save_last_good() { return {}; }
};

// Base of observers that are chained: calls that are not overridden go to `then`, which outlives this.
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
