// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/step_watch.h"

#include <algorithm>

#include "comm/watchdog/watchdog.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUnmeasuredSilence{60'000};
constexpr milliseconds kLeastTimeout{30'000};
constexpr std::int64_t kTimesTheLongest = 20;
constexpr std::int64_t kStepsToMeasure = 3;

}  // namespace

void watch_job(World& world, Communicator& host, double timeout_seconds) {
  const milliseconds given(static_cast<std::int64_t>(1000 * timeout_seconds));
  world.set_timeout(given.count() > 0 ? given : JobState::kDefaultTimeout);
  world.watch(host, given.count() > 0 ? given : kUnmeasuredSilence);
}

milliseconds step_timeout(milliseconds longest_step, std::int64_t steps) {
  if (steps < kStepsToMeasure) return JobState::kDefaultTimeout;
  return std::max(kLeastTimeout, kTimesTheLongest * longest_step);
}

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
  began_ns_ = now_ns();
  if (!given_) world_.set_timeout(step_timeout(milliseconds(longest_ns_ / 1'000'000), steps_));
  if (Watchdog* watchdog = world_.watchdog()) watchdog->set_in_steps(true);
}

bool StepWatch::goes_on() {
  if (began_ns_ > 0) {
    ++steps_;
    longest_ns_ = std::max(longest_ns_, now_ns() - began_ns_);
  }
  leave_step();
  return true;
}

void StepWatch::leave_step() {
  began_ns_ = 0;
  if (!given_) world_.set_timeout(JobState::kDefaultTimeout);
  if (Watchdog* watchdog = world_.watchdog()) watchdog->set_in_steps(false);
}

}  // namespace lockstep
