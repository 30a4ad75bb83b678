// SPDX-License-Identifier: Apache-2.0
#include "comm/job_state.h"

#include <algorithm>

namespace lockstep {

void JobState::abandon(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (abandoned_) return;
  try {
    reason_ = reason;
  } catch (...) {  // no memory for it: the job is abandoned without
  }
  abandoned_.store(true, std::memory_order_release);
}

std::string JobState::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::chrono::milliseconds WaitClock::look(JobState::Clock::time_point now) {
  constexpr JobState::Clock::duration kMost = std::chrono::seconds(1);
  if (last_ != JobState::Clock::time_point{}) waited_ += std::min(now - last_, kMost);
  last_ = now;
  return std::chrono::duration_cast<std::chrono::milliseconds>(waited_);
}

void PeerWait::look() {
  JobState& job = *place_.job;
  const auto in = [&] {
    return place_.collective == nullptr ? std::string() : " in " + describe(*place_.collective);
  };
  if (job.abandoned()) {
    throw GaveUp(fmt::format("{}: gave up waiting for {}{}: {}", current_place(), what_, in(), job.reason()));
  }
  const auto timeout = job.timeout();
  const auto waited = clock_.look();
  if (timeout.count() == 0 || waited < timeout) return;
  const std::string reason =
      fmt::format("{} waited {:.3g} s for {}{}: a rank hangs, or is far behind (comm.timeout)",
                  current_place(), std::chrono::duration<double>(waited).count(), what_, in());
  job.abandon(reason);
  throw GaveUp(reason);
}

}  // namespace lockstep
