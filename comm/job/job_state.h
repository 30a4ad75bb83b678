// SPDX-License-Identifier: Apache-2.0
//
// JobState: whether the job has failed, as far as this process knows. World makes one per process (the hub,
// for ranks as threads), and everything that communicates shares it. A rank that gives up records the reason
// here; every wait for a peer checks it and gives up too. A wait that outlasts the timeout abandons the job,
// so a peer that hangs or is dead ends the job instead of blocking it for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "core/error.h"

namespace lockstep {

class CollectiveLog;

// A wait for peers that has outlasted the timeout and still waits.
struct OverdueWait {
  std::string reason;      // "rank 0 in step 3 waited 31 s for ..."
  std::string collective;  // empty: none
};

class JobState {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDefaultTimeout{1800};
  // How much longer a wait may take in a watched job before it abandons the job itself.
  static constexpr std::chrono::seconds kWatchdogGrace{8};

  // Marks the job as failed: every wait for a peer ends with an error that gives this reason. The first
  // reason is kept. Any thread, also while an exception unwinds the stack.
  void abandon(std::string_view reason, int exit_code = exit_code::failed) noexcept;
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  std::string reason() const;  // empty: not abandoned
  int exit_code() const;       // of the ranks that give up

  // The longest wait for a peer; 0: unlimited. The same on every rank. Any thread.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }

  // True if a watchdog (comm/watchdog) watches this job: it reads waits that outlast the timeout, finds the
  // rank at fault, and ends the job. Any thread.
  void set_watched(bool watched) { watched_ = watched; }
  bool watched() const { return watched_; }
  // Reports a wait; nullopt: it has ended. waiter: identifies it.
  void set_overdue(std::optional<OverdueWait> wait, const void* waiter);
  // The first reported wait that has not ended; nullopt: none.
  std::optional<OverdueWait> overdue() const;

  // The logs of this process's communicators, for the watchdog. Remove a log before it ends.
  void add_log(const CollectiveLog& log);
  void remove_log(const CollectiveLog& log);
  // Calls look(log) for each log; no log can be removed meanwhile.
  template <typename Look>
  void for_each_log(const Look& look) const {
    const std::lock_guard lock(logs_mutex_);
    for (const CollectiveLog* log : logs_) look(*log);
  }

 private:
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> watched_{false};
  std::atomic<std::int64_t> timeout_ms_{std::chrono::milliseconds(kDefaultTimeout).count()};
  mutable std::mutex mutex_;
  std::string reason_;  // guarded by mutex_, as the next two
  int exit_code_ = exit_code::failed;
  std::vector<std::pair<const void*, OverdueWait>> overdue_;  // with their waiters
  mutable std::mutex logs_mutex_;
  std::vector<const CollectiveLog*> logs_;  // guarded by logs_mutex_
};

// Thrown by a wait that found the job abandoned, or that abandoned it.
struct GaveUp : Error {
  explicit GaveUp(const std::string& message, int code = exit_code::failed) : Error(code, message) {}
};

// The context of a wait: the job, and the collective that the transport runs; null: none.
struct WaitPlace {
  std::shared_ptr<JobState> job;
  const Collective* collective = nullptr;
};

// Measures how long a wait lasts. Time in which the process was stopped (for example by a scheduler) does not
// count: two looks add at most one second.
class WaitClock {
 public:
  // Time waited since the first call.
  std::chrono::milliseconds look(JobState::Clock::time_point now = JobState::Clock::now());

 private:
  JobState::Clock::time_point last_ = {};
  JobState::Clock::duration waited_ = {};
};

// One wait for peers. Construction is free: call look() once polling has taken a while, and then at least
// once a second.
class PeerWait {
 public:
  // what: completes "waited 5 s for {what}". It and the place outlive this.
  PeerWait(const WaitPlace& place, std::string_view what) : place_(place), what_(what) {}
  PeerWait(const PeerWait&) = delete;
  PeerWait& operator=(const PeerWait&) = delete;
  ~PeerWait() {
    if (told_) place_.job->set_overdue(std::nullopt, this);
  }

  // Throws GaveUp if the job is abandoned, or if this wait has outlasted the timeout, which abandons the job.
  // In a watched job it reports the wait to the watchdog first.
  void look();

 private:
  std::string describe_wait(std::chrono::milliseconds waited) const;

  const WaitPlace& place_;
  std::string_view what_;
  WaitClock clock_;
  bool told_ = false;
};

}  // namespace lockstep
