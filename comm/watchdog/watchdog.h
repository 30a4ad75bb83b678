// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: a thread of each rank that checks whether the whole job makes progress. If not, it ends the job
// with exit_code::resumable and a report: which rank hangs, stopped or died, where it was last, what its
// peers wait for, and their stacks. It depends on nothing that may hang: it reads the records of collectives
// (comm/collective_log.h), and sends what it finds over its own TCP connections, several times within the
// time that a rank may be silent.
//
// Two ranks, the posts, hear all others: rank 0, and the first rank of another node, or rank 1 if there is
// one node. The second post acts if the first is silent itself. If a rank reaches neither, its waits end by
// themselves (JobState::kWatchdogGrace after the timeout).
//
// Limits: JobState::timeout() for a wait in a collective or a step; Options::silence for silence. Time in
// which a scheduler had stopped all processes does not count (WaitClock).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/watchdog/verdict.h"
#include "comm/watchdog/watch_link.h"

namespace lockstep {

class Watchdog {
 public:
  struct Options {
    std::chrono::milliseconds silence{std::chrono::seconds(60)};  // the longest of a rank
    std::string host;                                             // this machine's name
    // Reports why and ends the job, on all nodes. Called on the watchdog's thread, which ends if this
    // returns.
    std::function<void(const std::string& report)> end_job;
  };

  // Collective over all ranks of the job. Watches host.job().
  Watchdog(Communicator& host, Options options);
  // Says goodbye, so that its peers do not report the end of this rank.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // True if the training thread runs steps (current_step()): a step that lasts longer than the timeout hangs,
  // whatever it waits for.
  void set_in_steps(bool in_steps) { in_steps_ = in_steps; }
  // An upper limit of the time that the current step has lasted, without the time in which this process was
  // stopped. It allows for looks of the watchdog's thread that are late. Any thread.
  std::chrono::milliseconds most_step_time() const {
    return 2 * std::chrono::milliseconds(in_step_ms_.load()) + 3 * interval_;
  }
  // Returns the device's progress while the training thread may wait for it; null: there is none. Called on
  // the watchdog's thread, but not after a later set_device() has returned.
  void set_device(std::function<DevicePlace()> place);
  // Says goodbye: this rank fails, reports that itself, and ends. Any thread.
  void farewell();

 private:
  struct Visitor {
    WatchLink link;
    int rank;
  };
  struct Wait {
    const CollectiveLog* log = nullptr;
    std::uint64_t sequence = 0;
    WaitClock clock;
  };
  // A post's knowledge of a rank, itself included.
  struct Heard {
    WatchedRank rank;
    WaitClock silence;
    std::optional<WaitClock> gone;  // its last link has ended without a goodbye
    bool told_gone = false;
  };
  // A question to a rank when the job ends. A rank answers in the order of its questions.
  struct Question {
    int rank;
    std::string title;
    std::optional<std::string> answer;
  };

  bool is_post() const { return meeting_point_.has_value(); }
  void run();
  // Connects to the posts. A post serves its visitors meanwhile.
  void connect();
  std::optional<WatchLink> reach(const std::string& way);
  // Handles what has arrived: from the posts and, on a post, from all ranks.
  void serve(std::chrono::milliseconds longest_wait);
  void serve_visitors();
  void heed_visitor(Visitor& visitor, const WatchMessage& message);
  void heed_post(WatchLink& post, const WatchMessage& message);
  // Sends a heartbeat.
  void beat();
  RankStatus look();
  void look_at_waits(RankStatus& status);
  void look_for_overdue(RankStatus& status);
  void watch_others();
  bool in_charge() const;
  void end(const Verdict& verdict);
  void ask(const Verdict& verdict);
  void ask(int rank, std::string title, WatchWord word, const std::string& text = {});
  void heed_answer(int rank, const std::string& text);
  std::string answers() const;

  int rank_, size_;
  std::shared_ptr<JobState> job_;
  Options options_;
  std::chrono::milliseconds interval_;
  std::vector<int> posts_;
  std::vector<std::string> ways_;  // to the posts
  std::optional<MeetingPoint> meeting_point_;
  std::atomic<bool> in_steps_{false};
  std::atomic<std::int64_t> in_step_ms_{0};  // value of in_step_
  std::mutex device_mutex_;
  std::function<DevicePlace()> device_;  // guarded by device_mutex_

  // Used by the watchdog's thread only.
  Wait wait_;
  std::int64_t step_ = -1;
  WaitClock in_step_;
  std::vector<Visitor> visitors_;
  std::vector<Heard> heard_;  // by rank; on a post
  std::vector<Question> questions_;
  std::optional<JobState::Clock::time_point> wrong_since_;
  std::optional<JobState::Clock::time_point> told_to_end_;

  std::mutex mutex_;              // guards links_, which farewell() uses, too
  std::vector<WatchLink> links_;  // to the posts
  int wake_ = -1;                 // an eventfd: the thread is to stop
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
