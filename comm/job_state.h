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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective.h"
#include "core/error.h"

namespace lockstep {

class CollectiveLog;

// A wait for peers that has outlasted the timeout, and goes on.
struct OverdueWait {
  std::string reason;      // "rank 0 in step 3 waited 31 s for ..."
  std::string collective;  // empty: in none
};

class JobState {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDefaultTimeout{1800};
  // How much longer a wait may take where a watchdog ends jobs, before it gives up by itself.
  static constexpr std::chrono::seconds kWatchdogGrace{8};

  // The job has failed: every wait for a peer ends with an error that gives this reason. The first one stays.
  // Any thread; also while an exception unwinds the stack.
  void abandon(std::string_view reason, int exit_code = exit_code::failed) noexcept;
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  std::string reason() const;  // empty: not abandoned
  int exit_code() const;       // of whoever gives up for it

  // The longest wait for a peer; 0: any. Every rank the same. Any thread.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }

  // Somebody watches this job (comm/watchdog): he is told of waits that outlast the timeout, finds out whose
  // fault it is, and ends the job. Any thread.
  void set_watched(bool watched) { watched_ = watched; }
  bool watched() const { return watched_; }
  void set_overdue(std::optional<OverdueWait> wait);
  std::optional<OverdueWait> overdue() const;

  // The records of this process's communicators, for whoever watches. A log leaves before it ends.
  void add_log(const CollectiveLog& log);
  void remove_log(const CollectiveLog& log);
  // Calls look(log) for each; none ends meanwhile.
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
  std::string reason_;  // guarded, as what follows
  int exit_code_ = exit_code::failed;
  std::optional<OverdueWait> overdue_;
  mutable std::mutex logs_mutex_;
  std::vector<const CollectiveLog*> logs_;  // guarded by it
};

// Of a wait that ended because the job was abandoned, or abandoned it.
struct GaveUp : Error {
  explicit GaveUp(const std::string& message, int code = exit_code::failed) : Error(code, message) {}
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
  PeerWait(const PeerWait&) = delete;
  PeerWait& operator=(const PeerWait&) = delete;
  ~PeerWait() {
    if (told_) place_.job->set_overdue(std::nullopt);
  }

  // Throws GaveUp where the job is abandoned, or this has lasted longer than its timeout, which abandons it;
  // where the job is watched, the watchdog is told first.
  void look();

 private:
  std::string describe_wait(std::chrono::milliseconds waited) const;

  const WaitPlace& place_;
  std::string_view what_;
  WaitClock clock_;
  bool told_ = false;
};

}  // namespace lockstep
