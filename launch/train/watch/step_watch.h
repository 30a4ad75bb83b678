// SPDX-License-Identifier: Apache-2.0
//
// How long ranks may wait for each other (comm.timeout_seconds), and what a training reports to the job's
// watchdog (comm/watchdog). Without a configured timeout, a step counts as hung after 20 times the longest
// step so far, and at least 30 s. Before three steps are measured, with local SGD before two waits for an
// average are, and outside of steps (evaluation, a blocking checkpoint), the limit is half an hour. All these
// limits are at least twice the longest period from one step after which all ranks have met to the next (with
// local SGD, from one average to the next), because a rank may become slower in any period.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "comm/world.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

// Collective. The first call starts the job's watchdog; each call sets its timeout. timeout_seconds: the
// configured one; 0: none.
void watch_job(World& world, Communicator& host, double timeout_seconds);

// The longest that a step may take after `steps` measured ones; half an hour if there are fewer than three.
std::chrono::milliseconds step_timeout(std::chrono::milliseconds longest_step, std::int64_t steps);

// The time limit of a step, from the longest one so far. Times are those of now_ns().
class StepLimit {
 public:
  struct StepDone {
    std::int64_t ns = 0;
    bool ranks_met = true;  // see Trainer::ranks_met()
    // The longest that the step can have lasted, without the time in which the process was stopped.
    std::int64_t most_ns = std::numeric_limits<std::int64_t>::max();
  };
  void begin(std::int64_t ns) { began_ns_ = ns; }
  // A step has ended; on a ring the next one begins. The time of a step in which the process was suspended,
  // as by a scheduler, does not count: such a step outlasts most_ns or timeout().
  void step_done(const StepDone& step);
  // At least half an hour from the first local step until two waits for an average are measured: such a wait
  // may be as long as all local steps of a slower rank, and after a resume the first one follows only some of
  // them.
  std::chrono::milliseconds timeout() const;
  // Outside of steps.
  std::chrono::milliseconds timeout_between() const;

 private:
  std::chrono::milliseconds two_periods() const;

  bool has_local_steps_ = false;
  bool ranks_met_ = true;   // in the last step
  bool averaged_ = false;   // the last step ended local ones; a GPU's host waits for it in the next step
  std::int64_t waits_ = 0;  // measured, of averages
  std::int64_t began_ns_ = 0;
  std::int64_t steps_ = 0;  // measured
  std::int64_t longest_ns_ = 0;
  std::int64_t period_ns_ = 0;  // steps since the ranks met
  std::int64_t longest_period_ns_ = 0;
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
  void step_failed() override { leave_step(); }  // saving the last good state may take longer than a step

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
