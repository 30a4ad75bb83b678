// SPDX-License-Identifier: Apache-2.0
//
// Report: the output of a training. On rank 0 it prints a progress bar and wrapped lines to a terminal, or
// plain lines to a pipe. It writes metrics.jsonl (a JSON object for each epoch), steps.jsonl,
// evaluations.jsonl and events.jsonl to the run's directory, and their numbers, the configuration and the
// machine to its folder tensorboard. On other ranks it does nothing. A closed pipe or a full disk does not
// end a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/buffer.h"
#include "launch/observe/account/advice.h"
#include "launch/observe/account/busy_watch.h"
#include "launch/observe/account/more_ranks.h"
#include "launch/observe/account/step_series.h"
#include "launch/observe/monitor/monitor_sums.h"
#include "launch/observe/run_files/line_file.h"
#include "launch/observe/tensorboard/event_file.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/train/clock/communication.h"
#include "launch/train/training_records.h"
#include "launch/train/watch/stragglers.h"

namespace lockstep {

// Rank 0's record of an epoch, and values gathered from all ranks.
struct EpochReport : EpochRecord {
  std::optional<EpochCommunication> communication;        // nullopt with one rank
  std::optional<Advice> advice = {};                      // on communication
  std::vector<Straggler> stragglers = {};                 // detected in the epoch
  double busy = 0;                                        // the mean over ranks
  std::vector<double> busy_by_rank = {};                  // see busy_share()
  std::vector<std::int64_t> resident_bytes_by_rank = {};  // memory of each process after the epoch's steps
  std::optional<DeviceMemoryUse> device_memory = {};      // rank 0's GPU, at the same time
  std::optional<MonitoredEpoch> device = {};              // nullopt without a monitor
  std::optional<double> peak = {};           // samples per second over the attainable rate (account/busy.h)
  std::optional<MoreRanks> more_ranks = {};  // where devices were busy; printed once
};

struct ReportOptions {
  bool speaks = true;     // true on rank 0 only
  bool terminal = false;  // draws the bar; else plain lines
  int columns = 80;       // width of the terminal
  std::filesystem::path directory;
  std::int64_t epochs = 1;  // epochs that the training begins, also a partial last one
  std::int64_t steps_per_epoch = 1;
  std::int64_t total_steps = 1;
  std::int64_t global_batch = 1;
  std::int64_t dropped_samples = 0, repeated_samples = 0;  // in each epoch
  std::int64_t last_batch_samples = 0;                     // in each epoch; 0: a full batch
  // For a resumed run: see continue_metrics(). nullopt: begins new files.
  std::optional<std::int64_t> goes_on_after = {};  // epochs
  bool partial_line = false;
  std::int64_t goes_on_after_step = 0;
};

class Report {
 public:
  // Prepares the files by begin_metrics() or continue_metrics() (run_folder.h), and throws their errors.
  explicit Report(const ReportOptions& options);

  // Called once, first: prints the line ("Lockstep 0.1.0: cnn, 2 ranks on cpu, ..."), the numbers of epochs
  // and steps, and the path of metrics.jsonl.
  void header(const std::string& line);
  // Prints a line, in place of the bar.
  void line(const std::string& text);
  // Prints a shell command, never wrapped, so that it can be pasted.
  void command(const std::string& words);
  // Called after a step. Redraws the bar at most ten times a second; it never wraps. Without a terminal,
  // prints a line for ten steps of an epoch.
  void step(const StepRecord& record);
  // Called after each of the `steps` steps of an evaluation. Draws a bar on a terminal; else prints a line
  // where the evaluation takes long.
  void evaluating(std::int64_t step, std::int64_t steps);
  // Prints a line of at most eight figures, then lines of metrics, communication and advice, where there are
  // any. Appends a line to metrics.jsonl, which also holds the step account.
  void epoch(const EpochReport& report);

  // At the start: writes the whole configuration and run_facts() (launch/program/train_command/run_facts.h)
  // for TensorBoard.
  void started(const std::string& config, const std::string& facts);
  // Writes the histograms for TensorBoard.
  void histograms(std::int64_t step, const std::vector<Histogram>& histograms);

  // Appends a line to evaluations.jsonl.
  void evaluation(const EvaluationRecord& record);
  // Appends a line to steps.jsonl. Where watch_busy() was called and finds the device idle, also prints a
  // line, appends one to events.jsonl and runs the user's command. Returns the seconds that writing
  // steps.jsonl and the events for TensorBoard took.
  double series(const StepLine& line);
  // found: called for each such event.
  void watch_busy(const BusyOptions& options, const IdleContext& context,
                  std::function<void(const IdleEvent&)> found = {});

  // Adds a straggler to the next line of metrics.jsonl.
  void straggler(const Straggler& straggler) { stragglers_.push_back(straggler); }

  // Describes what each file lacks, with the last error: the epochs of metrics.jsonl, the number of lines of
  // other files, the number of events for TensorBoard. Empty if nothing is missing. Each line and event is
  // written whole or not at all.
  std::vector<std::string> problems() const;
  // The files to which this appends lines or events. Some may not exist.
  std::vector<std::filesystem::path> files() const;

 private:
  double seconds_left(std::int64_t steps_done);
  void write_metrics(const EpochReport& report);
  void tell(const IdleEvent& event);
  template <typename Told>
  void write_events(std::int64_t step, const Told& told);
  void print_indented(std::vector<std::string> parts, const std::string& separator) const;
  void advise(const std::string& text) const;
  std::filesystem::path metrics_path() const { return options_.directory / "metrics.jsonl"; }
  std::string in_lines(const std::vector<std::string>& parts, const std::string& separator) const;

  ReportOptions options_;
  std::vector<Straggler> stragglers_;
  std::vector<std::int64_t> lost_epochs_;
  LineFile steps_, evaluations_, idle_events_;
  EventFile events_;  // without a file if it cannot be created
  std::int64_t lost_events_ = 0;
  std::string metrics_problem_, events_problem_;
  std::optional<BusyWatch> busy_watch_;
  std::function<void(const IdleEvent&)> idle_found_;  // may be null
  bool more_ranks_told_ = false;
  std::optional<ProgressMeter> evaluation_;  // progress of the current evaluation
  std::string event_command_ = "none";
  std::int64_t last_drawn_ns_ = 0;
  std::int64_t started_ns_ = 0;  // end of the first reported step
  std::int64_t started_at_ = 0;  // steps done at that time, since the start of training; 0: none yet
};

}  // namespace lockstep
