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

// The time limit of a step, from the longest one so far. Times are those of now_ns().
class StepLimit {
 public:
  // drift: steps by which a rank may be ahead of others that it then waits for.
  explicit StepLimit(std::int64_t drift) : drift_(drift) {}
  void begin(std::int64_t ns) { began_ns_ = ns; }
  // A step has ended; on a ring the next one begins.
  void step_done(std::int64_t ns);
  std::chrono::milliseconds timeout() const;

 private:
  std::int64_t drift_;
  std::int64_t began_ns_ = 0;
  std::int64_t steps_ = 0;  // measured
  std::int64_t longest_ns_ = 0;
};

// Reports the begin and end of each training step, and the state of a GPU, to the watchdog.
class StepWatch final : public TrainingObserver {
 public:
  StepWatch(World& world, const Trainer& trainer, double timeout_seconds);
  ~StepWatch() override;
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  void before_step() override;
  void step_done(const StepRecord&) override;
  bool goes_on() override;

 private:
  void set_timeout(std::chrono::milliseconds timeout);
  void leave_step();

  World& world_;
  const Trainer& trainer_;
  bool given_;  // timeout_seconds is configured and applies everywhere
  StepLimit limit_;
  bool in_step_ = false;
};

}  // namespace lockstep
