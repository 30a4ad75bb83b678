// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/step_watch.h"

#include <algorithm>
#include <cmath>

#include "comm/watchdog/watchdog.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUnmeasuredSilence{60'000};
constexpr milliseconds kLeastTimeout{30'000};
constexpr std::int64_t kTimesTheLongest = 20;
constexpr std::int64_t kStepsToMeasure = 3;
constexpr std::int64_t kWaitsToMeasure = 2;

}  // namespace

void watch_job(World& world, Communicator& host, double timeout_seconds) {
  const milliseconds given(static_cast<std::int64_t>(std::ceil(1000 * timeout_seconds)));
  world.set_timeout(given.count() > 0 ? given : JobState::kDefaultTimeout);
  world.watch(host, given.count() > 0 ? given : kUnmeasuredSilence);
}

milliseconds step_timeout(milliseconds longest_step, std::int64_t steps) {
  if (steps < kStepsToMeasure) return JobState::kDefaultTimeout;
  return std::max(kLeastTimeout, kTimesTheLongest * longest_step);
}

void StepLimit::step_done(const StepDone& step) {
  const std::int64_t lasted_ns = step.ns - began_ns_;
  // The watchdog ends other steps that outlast the timeout.
  const bool measured = lasted_ns <= step.most_ns && milliseconds(lasted_ns / 1'000'000) <= timeout();
  const std::int64_t step_ns = measured ? lasted_ns : 0;
  if (measured) ++steps_;
  longest_ns_ = std::max(longest_ns_, step_ns);
  period_ns_ = ranks_met_ ? step_ns : period_ns_ + step_ns;
  longest_period_ns_ = std::max(longest_period_ns_, period_ns_);
  began_ns_ = step.ns;
  if (averaged_ && measured) ++waits_;
  averaged_ = step.ranks_met && !ranks_met_;
  ranks_met_ = step.ranks_met;
  has_local_steps_ = has_local_steps_ || !step.ranks_met;
}

milliseconds StepLimit::timeout() const {
  if (has_local_steps_ && waits_ < kWaitsToMeasure) return timeout_between();
  return std::max(step_timeout(milliseconds(longest_ns_ / 1'000'000), steps_), two_periods());
}

milliseconds StepLimit::timeout_between() const {
  return std::max(milliseconds(JobState::kDefaultTimeout), two_periods());
}

milliseconds StepLimit::two_periods() const { return 2 * milliseconds(longest_period_ns_ / 1'000'000); }

StepWatch::StepWatch(World& world, const Trainer& trainer, double timeout_seconds)
    : world_(world), trainer_(trainer), given_(timeout_seconds > 0) {
  if (Watchdog* watchdog = world_.watchdog())
    watchdog->set_device([this] { return trainer_.device_place(); });
}

StepWatch::~StepWatch() {
  leave_step();
  if (Watchdog* watchdog = world_.watchdog()) watchdog->set_device(nullptr);
}

void StepWatch::before_step() {
  in_step_ = true;
  limit_.begin(now_ns());
  set_timeout(limit_.timeout());
  if (Watchdog* watchdog = world_.watchdog()) watchdog->set_in_steps(true);
}

void StepWatch::step_done(const StepRecord&) {
  if (!in_step_) return;  // a GPU's last step may be done after goes_on()
  StepLimit::StepDone step{.ns = now_ns(), .ranks_met = trainer_.ranks_met()};
  if (const Watchdog* watchdog = world_.watchdog())
    step.most_ns = std::chrono::nanoseconds(watchdog->most_step_time()).count();
  limit_.step_done(step);
  set_timeout(limit_.timeout());
}

bool StepWatch::goes_on() {
  leave_step();
  return true;
}

void StepWatch::set_timeout(milliseconds timeout) {
  if (!given_) world_.set_timeout(timeout);
}

void StepWatch::leave_step() {
  in_step_ = false;
  set_timeout(limit_.timeout_between());
  if (Watchdog* watchdog = world_.watchdog()) watchdog->set_in_steps(false);
}

}  // namespace lockstep
