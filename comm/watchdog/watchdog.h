// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: a thread of each rank that sees whether the whole job gets on, and ends it where it does not,
// with exit_code::resumable and a report: which rank hangs, stopped or died, where it was last, what the
// others wait for, and where their threads stand. It needs nothing of what may hang: it reads the records of
// collectives (comm/collective_log.h), and tells what it sees over TCP connections of its own, several times
// within the time that a rank may be silent.
//
// Two ranks hear all others: rank 0, and the first rank of another node, or rank 1 where there is one node.
// The second one speaks where the first is silent itself. A rank that reaches neither is on its own: its
// waits end by themselves (JobState::kWatchdogGrace after the timeout).
//
// What is too long: a wait in a collective, or a step, of JobState::timeout(); silence, of `silence`. A
// process that was stopped with all others, by a scheduler, did not wait meanwhile (WaitClock).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
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
    std::chrono::milliseconds silence{std::chrono::seconds(60)};  // that a rank may keep
    std::string host;                                             // what this machine is called
    // Tells why, and ends the job, on all nodes. From the watchdog's thread, which ends where this returns.
    std::function<void(const std::string& report)> end_job;
  };

  // Collective over all ranks of the job. Watches host.job().
  Watchdog(Communicator& host, Options options);
  // Says goodbye: that this rank ends means nothing to the others any more.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Whether the thread that trains is within steps (current_step()), each of which has an end: one that lasts
  // longer than the timeout hangs, whatever it waits for.
  void set_in_steps(bool in_steps) { in_steps_ = in_steps; }
  // Where its device stands, while the thread that trains may wait for it; null: it has none of its own. It
  // is called from the watchdog's thread, but not any more once this has returned with another.
  void set_device(std::function<DevicePlace()> place);
  // This rank fails, which it tells itself, and ends. Any thread.
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
  // Of another rank, or of this one, where this one hears them all.
  struct Heard {
    WatchedRank rank;
    WaitClock silence;
    std::optional<WaitClock> gone;  // its link has ended without a goodbye
    bool told_gone = false;
  };
  // What a rank is asked for when the job ends. It answers in the order in which it was asked.
  struct Question {
    int rank;
    std::string title;
    std::optional<std::string> answer;
  };

  bool is_post() const { return meeting_point_.has_value(); }
  void run();
  // To the posts. Takes visitors meanwhile, as those come to this one.
  void connect();
  std::optional<WatchLink> reach(const std::string& way);
  // What has come in: on the posts' links, and, on a post, from everybody.
  void serve(std::chrono::milliseconds longest_wait);
  void serve_visitors();
  void heed_visitor(Visitor& visitor, const WatchMessage& message);
  void heed_post(WatchLink& post, const WatchMessage& message);
  // A heartbeat.
  void beat();
  RankStatus look();
  void look_at_waits(RankStatus& status);
  void look_for_overdue(RankStatus& status);
  void watch_others();
  bool in_charge() const;
  std::vector<WatchedRank> board() const;
  void end(const Verdict& verdict);
  void ask(const Verdict& verdict);
  void ask(int rank, std::string title, WatchWord word, const std::string& text = {});
  void heed_answer(int rank, const std::string& text);
  std::string answers() const;
  void tell_end();

  int rank_, size_;
  std::shared_ptr<JobState> job_;
  Options options_;
  std::chrono::milliseconds interval_;
  std::vector<int> posts_;
  std::vector<std::string> ways_;  // to them
  std::optional<MeetingPoint> meeting_point_;
  std::atomic<bool> in_steps_{false};
  std::mutex device_mutex_;
  std::function<DevicePlace()> device_;  // guarded by it

  // The thread's own.
  Wait wait_;
  std::int64_t step_ = -1;
  WaitClock in_step_;
  std::vector<Visitor> visitors_;
  std::vector<Heard> heard_;  // by rank; on a post
  std::vector<Question> questions_;
  std::optional<JobState::Clock::time_point> wrong_since_;
  std::optional<JobState::Clock::time_point> told_to_end_;

  std::mutex mutex_;              // of links_, which farewell() uses, too
  std::vector<WatchLink> links_;  // to the posts
  int wake_ = -1;                 // an eventfd: stop
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the rest
};

}  // namespace lockstep
