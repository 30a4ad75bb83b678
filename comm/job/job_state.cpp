// SPDX-License-Identifier: Apache-2.0
#include "comm/job/job_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep {

void JobState::abandon(std::string_view reason, int exit_code) noexcept {
  const std::lock_guard lock(mutex_);
  if (abandoned_) return;
  exit_code_ = exit_code;
  try {
    reason_ = reason;
  } catch (...) {  // no memory for the reason: the job is abandoned without it
  }
  abandoned_.store(true, std::memory_order_release);
}

std::string JobState::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

int JobState::exit_code() const {
  const std::lock_guard lock(mutex_);
  return exit_code_;
}

void JobState::set_overdue(std::optional<OverdueWait> wait, const void* waiter) {
  const std::lock_guard lock(mutex_);
  std::erase_if(overdue_, [waiter](const auto& each) { return each.first == waiter; });
  if (wait) overdue_.emplace_back(waiter, std::move(*wait));
}

std::optional<OverdueWait> JobState::overdue() const {
  const std::lock_guard lock(mutex_);
  return overdue_.empty() ? std::nullopt : std::optional(overdue_.front().second);
}

void JobState::add_log(const CollectiveLog& log) {
  const std::lock_guard lock(logs_mutex_);
  logs_.push_back(&log);
}

void JobState::remove_log(const CollectiveLog& log) {
  const std::lock_guard lock(logs_mutex_);
  std::erase(logs_, &log);
}

std::chrono::milliseconds WaitClock::look(JobState::Clock::time_point now) {
  constexpr JobState::Clock::duration kMost = std::chrono::seconds(1);
  if (last_ != JobState::Clock::time_point{}) waited_ += std::min(now - last_, kMost);
  last_ = now;
  return std::chrono::duration_cast<std::chrono::milliseconds>(waited_);
}

std::string PeerWait::describe_wait(std::chrono::milliseconds waited) const {
  const std::string in = place_.collective == nullptr ? std::string() : " in " + describe(*place_.collective);
  return fmt::format("{} waited {:.3g} s for {}{}: a rank hangs, or is too slow for comm.timeout_seconds",
                     current_place(), std::chrono::duration<double>(waited).count(), what_, in);
}

void PeerWait::look() {
  JobState& job = *place_.job;
  if (job.abandoned()) {
    const std::string in =
        place_.collective == nullptr ? std::string() : " in " + describe(*place_.collective);
    throw GaveUp(fmt::format("{}: gave up waiting for {}{}: {}", current_place(), what_, in, job.reason()),
                 job.exit_code());
  }
  const auto timeout = job.timeout();
  const auto waited = clock_.look();
  if (timeout.count() == 0 || waited < timeout) return;
  if (job.watched() && waited < timeout + JobState::kWatchdogGrace) {
    if (std::exchange(told_, true)) return;
    job.set_overdue(OverdueWait{.reason = describe_wait(waited),
                                .collective = place_.collective ? describe(*place_.collective) : ""},
                    this);
    return;
  }
  const std::string reason = describe_wait(waited);
  job.abandon(reason, exit_code::resumable);
  throw GaveUp(reason, exit_code::resumable);
}

}  // namespace lockstep
