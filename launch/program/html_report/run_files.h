// SPDX-License-Identifier: Apache-2.0
//
// RunFolder: the contents of the files of a run (run.dir), written by this or an older version of Lockstep,
// or by a run that is still active. Numbers missing from a file are NaN. Unknown members are ignored.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/timeline.h"
#include "launch/program/html_report/monitor_table.h"

namespace lockstep {

inline constexpr double kNotTold = std::numeric_limits<double>::quiet_NaN();

// A line of steps.jsonl.
struct StepPoint {
  double step = 0;         // since the start of training
  double time = kNotTold;  // Unix, in seconds
  double loss = kNotTold;
  double learning_rate = kNotTold;
  double loss_scale = kNotTold;
  double gradient_norm = kNotTold;
  double samples_per_second = kNotTold;
  double busy = kNotTold;
  double peak = kNotTold;
  double exposed = kNotTold;  // communication not overlapped with compute, as a share of the account
  StepAccount account = {};   // since the previous line
};

// Seconds of an epoch, as defined in launch/train/clock/communication.h and launch/train/clock/ledger.h.
struct RankLine {
  double exposed = kNotTold, hidden = kNotTold, waited = kNotTold, wire = kNotTold, starved = kNotTold,
         no_core = kNotTold;
  std::vector<double> exposed_by_bucket = {};
};
struct BucketLine {
  double bytes = kNotTold, exposed = kNotTold, hidden = kNotTold, late = kNotTold, wire = kNotTold,
         starved = kNotTold;
};

struct CommunicationLine {
  double steps = 0;  // 0: the line has no communication
  double overlap = kNotTold;
  std::vector<RankLine> by_rank = {};
  std::vector<BucketLine> by_bucket = {};  // rank 0's
};

struct AdviceLine {
  std::string cause, key, value, text;
  double samples_per_second = kNotTold;
};

struct StragglerLine {
  double rank = kNotTold, since_step = kNotTold, found_step = kNotTold, seconds = kNotTold,
         median_seconds = kNotTold;
  std::string host;
};

// Class metrics of an evaluation; missing ones are empty.
struct ClassMetrics {
  std::vector<double> f1, precision, recall;   // by class
  std::vector<std::vector<double>> confusion;  // by label and prediction, square

  bool any() const { return !f1.empty() || !confusion.empty(); }
};

// A line of metrics.jsonl.
struct EpochLine {
  double epoch = 0;  // from 1
  double steps = 0;  // since the start of training
  double train_loss = kNotTold, test_loss = kNotTold, test_accuracy = kNotTold;
  double samples_per_second = kNotTold, learning_rate = kNotTold, loss_scale = kNotTold;
  double train_seconds = kNotTold, evaluation_seconds = kNotTold, skipped_steps = kNotTold;
  double busy = kNotTold, peak = kNotTold;
  double exposed = kNotTold;  // as StepPoint's
  double top5 = kNotTold, f1_macro = kNotTold;
  std::vector<double> resident_bytes_by_rank = {};
  ClassMetrics classes = {};  // in the last line only: metrics of the last evaluation
  std::vector<double> busy_by_rank = {};
  StepAccount account = {};
  CommunicationLine communication = {};
  std::vector<AdviceLine> advice = {};  // none or one
  std::vector<StragglerLine> stragglers = {};

  bool evaluated() const { return !std::isnan(test_accuracy) || !std::isnan(test_loss); }
};

// A line of evaluations.jsonl: an evaluation within an epoch.
struct EvaluationPoint {
  double step = 0;
  double test_loss = kNotTold, test_accuracy = kNotTold, top5 = kNotTold, f1_macro = kNotTold;
};

// A line of events.jsonl.
struct EventLine {
  double time = kNotTold;  // Unix, in seconds
  double step = kNotTold;
  std::string kind, cause, text;
};

// A key of the configuration, or a fact of run.json: "train.batch" and its value as text.
using RunFact = std::pair<std::string, std::string>;

struct RunFolder {
  std::filesystem::path folder;
  std::vector<EpochLine> epochs;
  std::vector<StepPoint> steps;              // ascending
  std::vector<EvaluationPoint> evaluations;  // ascending
  std::vector<EventLine> events;
  std::vector<std::string> class_names;  // from run.json; may be fewer than the classes
  std::vector<RunFact> config;
  std::vector<RunFact> machine;
  MonitorTable monitor;
  std::vector<std::string> absent;  // "steps.jsonl": missing files that every run should have
};

// Throws IoError for a folder without metrics.jsonl and for unreadable files, and DataError, with file and
// line, for damaged files and for files that are not regular or exceed 1 GiB. An incomplete last line, which
// a writer may be writing, is skipped.
RunFolder read_run_folder(const std::filesystem::path& folder);

// The files that read_run_folder() reads.
std::vector<std::filesystem::path> files_of_run(const std::filesystem::path& folder);

// Parse the text of a file; used by tests. name: the file in error messages.
std::vector<EpochLine> read_epoch_lines(std::string_view text, const std::string& name);
std::vector<StepPoint> read_step_lines(std::string_view text, const std::string& name);
std::vector<EvaluationPoint> read_evaluation_lines(std::string_view text, const std::string& name);
std::vector<EventLine> read_event_lines(std::string_view text, const std::string& name);
std::vector<RunFact> read_config_facts(std::string_view text, const std::string& name);
std::vector<RunFact> read_machine_facts(std::string_view text, const std::string& name);

}  // namespace lockstep
