// SPDX-License-Identifier: Apache-2.0
//
// Report: what a run says of itself. On rank 0's terminal a progress bar; where output is piped, plain lines.
// In the run's directory metrics.jsonl, one JSON object a line, one line an epoch. Other ranks have a Report
// that says nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/timeline.h"

namespace lockstep {

struct EpochReport {
  std::int64_t epoch = 0;  // from 1
  std::int64_t steps = 0;  // since the start of training
  double train_loss = 0;
  double test_loss = 0;
  double test_accuracy = 0;       // fraction
  double samples_per_second = 0;  // training only, over all ranks
  double learning_rate = 0;       // of the last step
  double train_seconds = 0;       // wall time of the epoch's training steps
  double evaluation_seconds = 0;
  std::int64_t skipped_steps = 0;  // of the epoch: gradients overflowed
  double loss_scale = 1;           // after it
  StepAccount account;             // rank 0's; adds up to train_seconds
};

struct ReportOptions {
  bool speaks = true;     // rank 0
  bool terminal = false;  // draw the bar; else plain lines
  int columns = 80;       // of the terminal
  std::filesystem::path directory;
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;
  std::int64_t global_batch = 1;
};

class Report {
 public:
  // Opens metrics.jsonl as open_metrics (run_folder.h) does. Throws IoError.
  explicit Report(const ReportOptions& options);

  // Once, above everything: the line ("Lockstep 0.1.0: cnn, 2 ranks on cpu, ..."), then epochs, steps per
  // epoch and global batch.
  void header(const std::string& line);
  // After a step (from 1, within its epoch). The bar is redrawn at most ten times a second and never wraps;
  // without a terminal ten steps an epoch get a line. loss is the running mean of the epoch; NaN, left
  // out, as long as there is none.
  void step(std::int64_t epoch, std::int64_t step, double loss, double samples_per_second);
  // Writes and flushes a line of metrics.jsonl and prints a summary with the step account in per cent. Throws
  // IoError.
  void epoch(const EpochReport& report);

 private:
  double seconds_left(std::int64_t steps_done);

  ReportOptions options_;
  std::ofstream metrics_;
  std::int64_t last_drawn_ns_ = 0;
  std::int64_t started_ns_ = 0;  // end of the first step reported, ...
  std::int64_t started_at_ = 0;  // ... which was this one of the whole run; 0: none yet
};

// The object metrics.jsonl gets: epoch, steps, train_loss, test_loss, test_accuracy, samples_per_second,
// learning_rate, train_seconds, evaluation_seconds, skipped_steps, loss_scale, account {data_wait, forward,
// ...} in seconds. What is not finite is null.
std::string to_json(const EpochReport& report);

}  // namespace lockstep
