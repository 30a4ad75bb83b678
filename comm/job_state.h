// SPDX-License-Identifier: Apache-2.0
//
// JobState: whether this job still holds together, as far as this process knows. One for each process, made
// by World (for ranks as threads, by their hub), and shared by everything that communicates. A rank that
// gives up says so here, with the reason; whoever waits for a peer looks here, and gives up, too. A wait that
// outlasts the timeout gives up by itself: a peer that hangs or is dead ends the job, instead of keeping it
// for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/collective.h"
#include "core/error.h"

namespace lockstep {

class JobState {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDefaultTimeout{1800};

  // The job has failed: every wait for a peer ends with an error that gives this reason. The first one stays.
  // Any thread; also while an exception unwinds the stack.
  void abandon(std::string_view reason) noexcept;
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  std::string reason() const;  // empty: not abandoned

  // The longest wait for a peer; 0: any. Every rank the same. Any thread.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }

 private:
  std::atomic<bool> abandoned_{false};
  std::atomic<std::int64_t> timeout_ms_{std::chrono::milliseconds(kDefaultTimeout).count()};
  mutable std::mutex mutex_;
  std::string reason_;  // guarded
};

// Of a wait that ended because the job was abandoned, or abandoned it.
struct GaveUp : Error {
  explicit GaveUp(const std::string& message) : Error(exit_code::failed, message) {}
};

// Whose waits they are: the collective a transport runs, or none yet.
struct WaitPlace {
  std::shared_ptr<JobState> job;
  const Collective* collective = nullptr;
};

// How long something has been waited for. A process that was stopped for a while (suspended by a scheduler,
// say) did not wait then: between two looks no more than a second counts.
class WaitClock {
 public:
  // So far. Counts from the first call.
  std::chrono::milliseconds look(JobState::Clock::time_point now = JobState::Clock::now());

 private:
  JobState::Clock::time_point last_ = {};
  JobState::Clock::duration waited_ = {};
};

// One wait for peers. Making it costs nothing: look() once polling has taken a while, and then at least once
// in a second.
class PeerWait {
 public:
  // what: is waited for, to be read as "waited 5 s for {what}"; outlives this, as the place does.
  PeerWait(const WaitPlace& place, std::string_view what) : place_(place), what_(what) {}

  // Throws GaveUp where the job is abandoned, or this has lasted longer than its timeout, which abandons it.
  void look();

 private:
  const WaitPlace& place_;
  std::string_view what_;
  WaitClock clock_;
};

}  // namespace lockstep
