// SPDX-License-Identifier: Apache-2.0
//
// How long ranks may wait for each other (comm.timeout_seconds), and what the job's watchdog (comm/watchdog)
// is told of a training. Where nobody has said it, it follows from the training itself: a step that takes
// twenty times as long as the longest one so far hangs. Before there are any, and where ranks do what takes
// as long as it takes (evaluation, a checkpoint that is waited for), they wait for half an hour.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/world.h"
#include "launch/fit_observer.h"
#include "launch/trainer.h"

namespace lockstep {

// Collective. From now on this job is watched. timeout_seconds: that of the configuration; 0: not given.
void watch_job(World& world, Communicator& host, double timeout_seconds);

// The longest that a step may take, by those before; half an hour where there were fewer than three.
std::chrono::milliseconds step_timeout(std::chrono::milliseconds longest_step, std::int64_t steps);

// Reports to the watchdog when a training step begins and ends, and the state of a GPU.
class StepWatch final : public PassingObserver {
 public:
  StepWatch(World& world, const Trainer& trainer, double timeout_seconds, FitObserver& then);
  ~StepWatch() override;
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  bool goes_on() override;
  void epoch_over(const std::optional<Evaluation>& evaluation) override;
  void evaluated_within() override;

 private:
  void leave_step();
  // The next thing that is done is a step.
  void enter_step();

  World& world_;
  const Trainer& trainer_;
  bool given_;                 // the timeout, which holds everywhere
  std::int64_t began_ns_ = 0;  // the step under way; 0: none
  std::int64_t steps_ = 0;     // measured
  std::int64_t longest_ns_ = 0;
};

}  // namespace lockstep
