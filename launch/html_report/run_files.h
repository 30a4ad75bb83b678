// SPDX-License-Identifier: Apache-2.0
//
// RunFolder: what the files of a run (run.dir) tell, as it was written: by this version of Lockstep, by an
// older one, or by a run that still goes on. Numbers that a file does not tell are NaN. Members that are not
// known are passed over.
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
#include "launch/html_report/monitor_table.h"

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
  double exposed = kNotTold;  // communication that nothing hid, as a share of the account
  StepAccount account = {};   // since the line before
};

// Seconds of an epoch, as launch/account/communication.h and launch/account/ledger.h have them.
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
  double steps = 0;  // 0: nothing was told
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

// What an evaluation told of classes; what it did not is empty.
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
  ClassMetrics classes = {};  // at the last line alone: of the last that has any
  std::vector<double> busy_by_rank = {};
  StepAccount account = {};
  CommunicationLine communication = {};
  std::vector<AdviceLine> advice = {};  // none or one
  std::vector<StragglerLine> stragglers = {};

  bool evaluated() const { return !std::isnan(test_accuracy) || !std::isnan(test_loss); }
};

// A line of evaluations.jsonl: of an evaluation within an epoch.
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

// A key of the configuration, or a fact of run.json: "train.batch" and what it is, as the file has it.
using RunFact = std::pair<std::string, std::string>;

struct RunFolder {
  std::filesystem::path folder;
  std::vector<EpochLine> epochs;
  std::vector<StepPoint> steps;              // ascending
  std::vector<EvaluationPoint> evaluations;  // ascending
  std::vector<EventLine> events;
  std::vector<std::string> class_names;  // as run.json has them; may be fewer than there are classes
  std::vector<RunFact> config;
  std::vector<RunFact> machine;
  MonitorTable monitor;
  std::vector<std::string> absent;  // "steps.jsonl": files that are not there, though every run has them
};

// Throws IoError for a folder without metrics.jsonl and for what cannot be read, and DataError with file and
// line for what is damaged, or is no regular file of 1 GiB at most. A last line without its end is one that
// is just being written, and left out.
RunFolder read_run_folder(const std::filesystem::path& folder);

// The files that read_run_folder() reads.
std::vector<std::filesystem::path> files_of_run(const std::filesystem::path& folder);

// Text of files, for tests. `name` is what an error calls the file.
std::vector<EpochLine> read_epoch_lines(std::string_view text, const std::string& name);
std::vector<StepPoint> read_step_lines(std::string_view text, const std::string& name);
std::vector<EvaluationPoint> read_evaluation_lines(std::string_view text, const std::string& name);
std::vector<EventLine> read_event_lines(std::string_view text, const std::string& name);
std::vector<RunFact> read_config_facts(std::string_view text, const std::string& name);
std::vector<RunFact> read_machine_facts(std::string_view text, const std::string& name);

}  // namespace lockstep
