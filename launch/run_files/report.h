// SPDX-License-Identifier: Apache-2.0
//
// Report: what a run says of itself. On rank 0's terminal a progress bar, and lines that fit; where output is
// piped, plain lines. In the run's directory metrics.jsonl, one JSON object a line, one line an epoch, and in
// its folder tensorboard the numbers of these lines and what the run was told. Other ranks have a Report that
// says nothing. Neither a pipe nor a disk that takes no more ends a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/processor_time.h"
#include "core/timeline.h"
#include "launch/account/busy_watch.h"
#include "launch/account/communication.h"
#include "launch/account/more_ranks.h"
#include "launch/account/step_series.h"
#include "launch/run_files/event_file.h"
#include "launch/run_files/line_file.h"
#include "launch/run_files/metric_lines.h"
#include "launch/terminal/progress_meter.h"

namespace lockstep {

struct StepReport {
  std::int64_t epoch = 0;       // from 1
  std::int64_t step = 0;        // from 1, within its epoch
  std::int64_t steps = 0;       // of this epoch, as many as will run
  std::int64_t steps_done = 0;  // since the start of training
  double loss = 0;              // the running mean of the epoch; NaN, and left out, as long as there is none
  double samples_per_second = 0;  // left out as long as it is 0: no step of the epoch is done
};

// A rank that is slower than the others; see StragglerScore.
struct Straggler {
  int rank = 0;
  std::string host;
  std::int64_t since_step = 0;  // from 1
  std::int64_t found_step = 0;  // within which, or right before, it was found
  double seconds = 0;           // of a step, its own
  double median_seconds = 0;    // of all ranks
  double factor() const { return seconds / median_seconds; }
};

struct EpochReport {
  std::int64_t epoch = 0;  // from 1
  std::int64_t steps = 0;  // since the start of training
  double train_loss = 0;
  std::optional<double> test_loss = {};             // nothing: the epoch was not evaluated
  std::optional<double> test_accuracy = {};         // fraction; likewise
  double samples_per_second = 0;                    // training only, over all ranks
  double learning_rate = 0;                         // of the last step
  double train_seconds = 0;                         // wall time of the epoch's training steps
  double evaluation_seconds = 0;                    // of all evaluations, within the epoch and behind it
  std::int64_t skipped_steps = 0;                   // of the epoch: gradients overflowed
  double loss_scale = 1;                            // after it
  StepAccount account;                              // rank 0's; adds up to train_seconds
  ProcessorAccount processor;                       // what rank 0's process took of cores meanwhile
  std::optional<EpochCommunication> communication;  // of several ranks
  std::vector<std::int64_t> steps_by_rank = {};     // on a ring (comm.topology), in this epoch; else empty
  std::vector<Straggler> stragglers = {};           // that were found in it
  std::vector<double> busy_by_rank = {};            // see busy_share()
  std::vector<std::int64_t> resident_bytes_by_rank = {};  // of their processes, behind the epoch
  std::optional<DeviceMemoryUse> device_memory = {};      // rank 0's, of a GPU, then
  std::string device = {};  // what the monitor saw (launch/monitor/monitor_sums.h), as JSON; empty: nothing
  std::optional<double> peak = {};  // samples per second over what is attainable (launch/account/busy.h)
  std::optional<EvaluationMetrics> metrics = {};  // of the evaluation behind it, where any are asked for
  double metrics_seconds = 0;                     // what counting them took, of evaluation_seconds
  std::int64_t evaluations_within = 0;            // run.metrics_every
  double within_seconds = 0;                      // that they took, of evaluation_seconds
  std::optional<MoreRanks> more_ranks = {};       // where devices were busy; printed for the first such epoch

  double busy() const;  // the mean over ranks
};

struct ReportOptions {
  bool speaks = true;     // rank 0
  bool terminal = false;  // draw the bar; else plain lines
  int columns = 80;       // of the terminal
  std::filesystem::path directory;
  std::int64_t epochs = 1;  // that are begun
  std::int64_t steps_per_epoch = 1;
  std::int64_t total_steps = 1;
  std::int64_t global_batch = 1;
  std::int64_t dropped_samples = 0, repeated_samples = 0;  // of each epoch
  std::int64_t last_batch_samples = 0;                     // of each epoch, where that is a short one
  // A run that goes on: see continue_metrics(). Else metrics begin anew.
  std::optional<std::int64_t> goes_on_after = {};  // epochs
  bool partial_line = false;
  std::int64_t goes_on_after_step = 0;
};

class Report {
 public:
  // Opens metrics.jsonl as begin_metrics or continue_metrics (run_folder.h) do. Throws IoError.
  explicit Report(const ReportOptions& options);

  // Once, above everything: the line ("Lockstep 0.1.0: cnn, 2 ranks on cpu, ..."), then how much there is to
  // do and where metrics go.
  void header(const std::string& line);
  // A line of its own.
  void line(const std::string& text);
  // After a step. The bar is redrawn at most ten times a second and never wraps; without a terminal ten steps
  // an epoch get a line.
  void step(const StepReport& report);
  // After a step of an evaluation of so many: on a terminal a bar, elsewhere a line where it takes long.
  void evaluating(std::int64_t step, std::int64_t steps);
  // Appends a line to metrics.jsonl and prints a summary with the step account in per cent, and
  // communication's share of the processor time where there is any; then a line of communication and one of
  // advice, where there are any.
  void epoch(const EpochReport& report);

  // For TensorBoard, as it starts: the whole configuration, and the program and the machine (run_record.h).
  void started(const std::string& config, const std::string& facts);
  // For TensorBoard.
  void histograms(std::int64_t step, const std::vector<Histogram>& histograms);

  // A line of evaluations.jsonl.
  void evaluation(const EvaluationLine& line);
  // A line of steps.jsonl; and where somebody watches and finds the device idle, one on the terminal, one of
  // events.jsonl, and the user's command. Returns what writing the former took, in seconds.
  double series(const StepLine& line);
  void watch_busy(const BusyOptions& options, const IdleContext& context);

  // The next epoch's line names it.
  void straggler(const Straggler& straggler) { stragglers_.push_back(straggler); }

  // What of its files is not there, and why: which epochs of metrics.jsonl, how many lines of the others.
  // Empty as long as they have all; each line gets its chance, and is there whole or not at all.
  std::vector<std::string> problems() const;

 private:
  double seconds_left(std::int64_t steps_done);
  void write_metrics(const EpochReport& report);
  void tell(const IdleEvent& event);
  template <typename Told>
  void write_events(std::int64_t step, const Told& told);
  void say_of(const EpochCommunication& communication);
  void advise(const std::string& text);
  std::filesystem::path metrics_path() const { return options_.directory / "metrics.jsonl"; }
  std::string in_lines(const std::vector<std::string>& parts, const std::string& separator) const;

  ReportOptions options_;
  std::vector<Straggler> stragglers_;
  std::vector<std::int64_t> lost_epochs_;
  LineFile steps_, evaluations_, idle_events_;
  EventFile events_;  // none where it could not be written
  std::string metrics_problem_;
  std::optional<BusyWatch> busy_watch_;
  bool more_ranks_told_ = false;
  std::optional<ProgressMeter> evaluation_;  // that is under way
  std::string event_command_ = "none";
  std::int64_t last_drawn_ns_ = 0;
  std::int64_t started_ns_ = 0;  // end of the first step reported, ...
  std::int64_t started_at_ = 0;  // ... which was this one of the whole run; 0: none yet
};

// The object metrics.jsonl gets: epoch, steps, busy, peak, train_loss, test_loss, test_accuracy
// (these two where the epoch was evaluated), samples_per_second, learning_rate, train_seconds,
// evaluation_seconds, skipped_steps, loss_scale, account {data_wait, forward,
// ...} and processor {compute, communication, data} in seconds, busy_by_rank, resident_bytes_by_rank; where
// there is a monitor device {utilization, ...} (launch/monitor/monitor_sums.h); of several ranks
// communication {steps, exposed_seconds, hidden_seconds, overlap, wire_seconds, wire_bytes_per_second,
// late_seconds, late_rank, by_rank, by_bucket, advice}; on a ring steps_by_rank; where there are any
// stragglers, a list of {rank, host, since_step, found_step, seconds, median_seconds}. With run.metrics what
// add_metrics() adds, and metrics_seconds; with run.metrics_every evaluations_within {count, seconds};
// where devices were busy more_ranks {ranks, samples_per_second, text}. What is not finite, or not there, is
// null.
std::string to_json(const EpochReport& report);

// The object steps.jsonl gets: epoch, step, steps, time (seconds since 1970), loss, gradient_norm,
// learning_rate, loss_scale, samples_per_second, busy, peak, evaluation_seconds, without_core_seconds and
// account, in seconds.
std::string to_json(const StepLine& line, double time);

}  // namespace lockstep
