// SPDX-License-Identifier: Apache-2.0
//
// RunFolder: the contents of the files of a run (run.dir), written by this or an older version of Lockstep,
// or by a run that is still active. Numbers missing from a file are NaN. Unknown members are ignored.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/observe/run_files/report.h"
#include "launch/program/html_report/files/monitor_table.h"

namespace lockstep {

inline constexpr double kNotTold = std::numeric_limits<double>::quiet_NaN();

// A line of events.jsonl.
struct EventLine {
  double time = kNotTold;  // Unix, in seconds
  double step = kNotTold;
  std::string kind, cause, text;
};

// A key of the configuration, or a fact of run.json: "train.batch" and its value as text.
using RunFact = std::pair<std::string, std::string>;
// Empty if there is no such key or fact.
std::string fact_named(const std::vector<RunFact>& facts, std::string_view name);

struct RunFolder {
  std::filesystem::path folder;
  std::vector<EpochReport> epochs;            // only the last evaluation has its metrics of classes
  std::vector<StepLine> steps;                // ascending
  std::vector<EvaluationRecord> evaluations;  // ascending, without metrics of classes
  std::vector<EventLine> events;
  std::vector<std::string> class_names;  // from run.json; may be fewer than the classes
  std::vector<RunFact> config;
  std::vector<RunFact> machine;
  std::vector<MonitorSeries> monitor;
  std::vector<std::string> absent;     // "steps.jsonl": missing files that every run should have
  bool monitor_exceeds_limit = false;  // monitor.csv exceeds 1 GiB: it is not read, and listed in `absent`
};

// Throws IoError for a folder without metrics.jsonl and for unreadable files, and DataError, with file and
// line, for damaged files and for files that are not regular or exceed 1 GiB (except monitor.csv). An
// incomplete last line, which a writer may be writing, is skipped.
RunFolder read_run_folder(const std::filesystem::path& folder);

// True if the run writes this file: one that read_run_folder() reads, or a network (run_folder.h). Neither
// the file nor the folder need exist.
bool is_file_of_run(const std::filesystem::path& file, const std::filesystem::path& folder);

// Parse the text of a file; used by tests. name: the file in error messages.
std::vector<StepLine> read_step_lines(std::string_view text, const std::string& name);
std::vector<RunFact> read_config_facts(std::string_view text, const std::string& name);

}  // namespace lockstep
