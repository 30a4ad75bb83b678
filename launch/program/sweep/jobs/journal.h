// SPDX-License-Identifier: Apache-2.0
//
// SweepJournal: records the start and the end of each job of a sweep, and the end of the sweep, in
// sweep.jsonl, one JSON object a line. The first line identifies the sweep; a file of another sweep is
// refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/observe/run_files/line_journal.h"
#include "launch/program/sweep/search.h"
#include "launch/program/tune/search.h"

namespace lockstep {

// The result of a job that ended and was not interrupted.
struct SweepResult {
  SweepJob job;
  std::int64_t epochs = 0;  // of the trial, in all its jobs so far
  std::int64_t steps = 0;   // likewise
  SweepMeasure measure = {};
  SweepCost cost = {};
  double seconds = 0;        // of the job
  std::string problem = {};  // reason of a failure; empty: none
};

class SweepJournal {
 public:
  // base: to_toml() of the configuration that all trials share. identity: SweepPlan::identity(). Throws
  // ConfigError with the difference for a file of another sweep, DataError for any other file, and IoError.
  SweepJournal(const std::filesystem::path& path, const std::string& base, const std::string& identity);

  // An event of the existing file, in order: the start of a job, its interruption, or its end.
  struct Event {
    SweepJob job;
    std::optional<SweepResult> end = {};  // nullopt: the job's start or interruption
    double interrupted_seconds = 0;       // duration of an interrupted job; else 0
  };
  const std::vector<Event>& found() const { return found_; }
  // True if the existing file records the end of the sweep.
  bool found_finish() const { return found_finish_; }

  void started(const SweepJob& job, const TuneSettings& settings) const;
  // seconds: duration of the job.
  void interrupted(const SweepJob& job, double seconds) const;
  void ended(const SweepResult& result) const;
  // Records the end of the sweep.
  void finished() const;

 private:
  void read(const std::string& base, const std::string& identity);

  LineJournal lines_;
  std::vector<Event> found_;
  bool found_finish_ = false;
};

}  // namespace lockstep
