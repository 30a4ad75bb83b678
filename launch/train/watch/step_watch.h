// SPDX-License-Identifier: Apache-2.0
//
// How long ranks may wait for each other (comm.timeout_seconds), and what a training reports to the job's
// watchdog (comm/watchdog). Without a configured timeout, a step counts as hung after 20 times the longest
// step so far, and at least 30 s. Before three steps are measured, and outside of steps (evaluation, a
// blocking checkpoint), the limit is half an hour.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/world.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

// Collective. Starts the job's watchdog and sets its timeout. timeout_seconds: the configured one; 0: none.
void watch_job(World& world, Communicator& host, double timeout_seconds);

// The longest that a step may take after `steps` measured ones; half an hour if there are fewer than three.
std::chrono::milliseconds step_timeout(std::chrono::milliseconds longest_step, std::int64_t steps);

// Reports the begin and end of each training step, and the state of a GPU, to the watchdog.
class StepWatch final : public TrainingObserver {
 public:
  StepWatch(World& world, const Trainer& trainer, double timeout_seconds);
  ~StepWatch() override;
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  void before_step() override;
  bool goes_on() override;

 private:
  void leave_step();

  World& world_;
  const Trainer& trainer_;
  bool given_;                 // timeout_seconds is configured and applies everywhere
  std::int64_t began_ns_ = 0;  // begin of the step under way; 0: none
  std::int64_t steps_ = 0;     // measured
  std::int64_t longest_ns_ = 0;
};

}  // namespace lockstep
