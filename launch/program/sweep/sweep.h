// SPDX-License-Identifier: Apache-2.0
//
// Sweep: runs the trials of a plan, each as a process of this program (`lockstep train`), one in each slot.
// It records every start and end of a job in sweep.jsonl. A sweep that ended in any way resumes from there:
// completed jobs are not repeated, and interrupted ones resume from their checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/observe/run_files/run_folder.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/sweep/jobs/child_processes.h"
#include "launch/program/sweep/jobs/journal.h"
#include "launch/program/sweep/jobs/outcome.h"
#include "launch/program/sweep/jobs/session_folders.h"
#include "launch/program/sweep/jobs/slots.h"
#include "launch/program/sweep/plan.h"

namespace lockstep {

class Sweep {
 public:
  // speaks: prints results and a progress bar to standard output. The plan, the slots and the registry
  // outlive this. Throws ConfigError where the folder holds another sweep or another process holds the
  // folder, DataError for a damaged sweep.jsonl, and IoError.
  Sweep(const SweepPlan& plan, const SweepSlots& slots, const Registry& registry, bool speaks);

  // Runs all jobs, and returns 0. After a stop signal running jobs save and end, and it returns the signal.
  int run();
  SweepOutcome outcome() const;
  // The whole configuration of a valid trial, with the sweep's folder best as run.dir, to train it by hand.
  Config config_of(std::int64_t trial) const;
  std::filesystem::path folder_of(std::int64_t trial) const;
  // Records the end of the sweep, so that a later run() starts no job, and removes the checkpoints of all
  // other trials that did not fail: the problem of a failed one may name its checkpoint.
  void finish(std::int64_t best) const;

 private:
  // State of one trial, over all its jobs.
  struct Account {
    std::optional<Config> config = {};
    std::string problem = {};  // error of the configuration, where config is nullopt
    std::int64_t epochs = 0, steps = 0;
    std::int64_t epochs_before = 0;  // trained by earlier starts of the sweep
    SweepCost cost = {};
    double seconds = 0;
    bool begun = false;  // a job was started, by this start or an earlier one
    int stopped = 0;     // resumable jobs that something other than this sweep stopped
  };
  struct Running {
    SweepJob job;
    std::size_t slot = 0;
    double since = 0;
    std::uintmax_t output_before = 0;  // bytes of earlier jobs in the output file
  };

  std::vector<std::string> overrides_of(std::int64_t trial) const;
  void load_configs();
  void replay();
  void wait_for_orphans();
  void fill_slots();
  void make_folder(std::int64_t trial);
  void start(const SweepJob& job, std::size_t slot);
  ChildCommand command_of(const SweepJob& job, std::size_t slot) const;
  void heed_end(const ChildProcesses::Ended& ended);
  void record(SweepResult result);
  SweepResult result_of(const Running& running) const;
  std::string problem_of(const Running& running, int code) const;
  void stop_running(int signal);
  // Sum over the trials of the epochs trained when the last successful job ended.
  std::int64_t epochs_done() const;
  // Epochs that the trial has trained, including those of a job that runs or was interrupted.
  std::int64_t epochs_trained(std::int64_t trial) const;
  void show_progress();
  void say_line(const std::string& text);

  const SweepPlan& plan_;
  const SweepSlots& slots_;
  const Registry& registry_;
  bool speaks_;
  std::filesystem::path folder_;
  std::string program_;  // path of this program, read at the start
  RunLock lock_;
  SweepJournal journal_;
  SweepSearch search_;
  std::vector<Account> accounts_;
  SessionFolders sessions_;
  ChildProcesses children_;
  std::map<pid_t, Running> running_;
  std::vector<std::size_t> free_slots_;  // the last is taken first
  std::optional<ProgressMeter> meter_;
  int stopped_by_ = 0;
  // Jobs of this start.
  std::int64_t jobs_ = 0;
  double first_begin_ = 0, last_end_ = 0, busy_seconds_ = 0;
};

}  // namespace lockstep
