// SPDX-License-Identifier: Apache-2.0
//
// FitObserver: who is asked between the steps of a training. It may look at the state there, and stop it.
#pragma once

namespace lockstep {

struct Evaluation;

class FitObserver {
 public:
  virtual ~FitObserver() = default;
  // Collective. After every step; false, on every rank alike: training stops here, without an evaluation.
  virtual bool goes_on() = 0;
  // Collective. After an epoch, or as much of it as train.steps allows, was evaluated and reported.
  virtual void evaluated(const Evaluation& evaluation) = 0;
};

}  // namespace lockstep
