// SPDX-License-Identifier: Apache-2.0
//
// Sweep: runs the trials of a plan, each as a process of this program (`lockstep train`), as many at once as
// there are slots. It writes what happens to sweep.jsonl as it happens; a sweep that was ended, however, goes
// on from there: what was done is not done again, and what ran goes on from its own checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/run_files/run_folder.h"
#include "launch/sweep/child_processes.h"
#include "launch/sweep/journal.h"
#include "launch/sweep/outcome.h"
#include "launch/sweep/plan.h"
#include "launch/sweep/slots.h"
#include "launch/terminal/progress_meter.h"

namespace lockstep {

class Sweep {
 public:
  // speaks: lines of what happens and a progress bar on standard output. The registry and the plan outlive
  // this. Throws ConfigError where the folder holds another sweep or another process has it, and IoError.
  Sweep(const SweepPlan& plan, const SweepSlots& slots, const Registry& registry, bool speaks);

  // Until all is done, or a signal asked to stop: then those that run have saved and ended. Returns that
  // signal, or 0.
  int run();
  SweepOutcome outcome() const;
  // As a user would train it by hand: the whole configuration, into a folder of its own.
  Config config_of(std::int64_t trial) const;
  std::filesystem::path folder_of(std::int64_t trial) const;
  // Of trials that are not the best: nothing goes on from them any more.
  void remove_checkpoints_but_of(std::int64_t best) const;

 private:
  // Of one trial, over all its jobs.
  struct Account {
    std::optional<Config> config = {};
    std::string problem = {};  // why there is no such configuration
    std::int64_t epochs = 0, steps = 0;
    double seconds = 0;
    bool begun = false;  // a job of it was started, by this start or an earlier one
    int stopped = 0;     // jobs that something else than this ended, and that could go on
  };
  struct Running {
    SweepJob job;
    std::size_t slot = 0;
    double since = 0;
    std::uintmax_t output_before = 0;  // bytes, of earlier jobs
  };

  std::vector<std::string> overrides_of(std::int64_t trial) const;
  void load_configs();
  void replay();
  void wait_for_orphans();
  void fill_slots();
  void start(const SweepJob& job, std::size_t slot);
  ChildCommand command_of(const SweepJob& job, std::size_t slot) const;
  void heed_end(const ChildProcesses::Ended& ended);
  void record(SweepResult result);
  SweepResult result_of(const Running& running) const;
  std::string problem_of(const Running& running, int code) const;
  void stop_running(int signal);
  void show_progress();
  void say_line(const std::string& text);

  const SweepPlan& plan_;
  const SweepSlots& slots_;
  const Registry& registry_;
  bool speaks_;
  std::filesystem::path folder_;
  std::string program_;  // this one's path, also where another has taken its place meanwhile
  RunLock lock_;
  SweepJournal journal_;
  SweepSearch search_;
  std::vector<Account> accounts_;
  ChildProcesses children_;
  std::map<pid_t, Running> running_;
  std::vector<std::size_t> free_slots_;  // the last is taken first
  std::optional<ProgressMeter> meter_;
  std::int64_t epochs_before_ = 0;  // that earlier starts have taken
  int stopped_by_ = 0;
  // Of this start.
  std::int64_t jobs_ = 0;
  double first_begin_ = 0, last_end_ = 0, busy_seconds_ = 0;
};

}  // namespace lockstep
