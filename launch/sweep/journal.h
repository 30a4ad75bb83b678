// SPDX-License-Identifier: Apache-2.0
//
// SweepJournal: what a sweep has started and what became of it, on disk as it happens, one JSON object a line
// in sweep.jsonl. The first line says what is searched; what is of another sweep is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/run_files/line_journal.h"
#include "launch/sweep/search.h"
#include "launch/tune/search.h"

namespace lockstep {

// A job that ended by itself: what is known of it.
struct SweepResult {
  SweepJob job;
  std::int64_t epochs = 0;  // of the trial, so far
  std::int64_t steps = 0;   // of the trial, so far
  SweepMeasure measure = {};
  double seconds = 0;        // of the job
  std::string problem = {};  // why it failed; empty: it did not
};

class SweepJournal {
 public:
  // base: to_toml of the configuration that all trials share. identity: SweepPlan::identity(). Throws
  // ConfigError for another sweep's file, saying what differs, DataError for one that no sweep wrote,
  // IoError.
  SweepJournal(const std::filesystem::path& path, const std::string& base, const std::string& identity);

  // What was there at first, in order: a job that was started, or how one ended.
  struct Event {
    SweepJob job;
    std::optional<SweepResult> end;
  };
  const std::vector<Event>& found() const { return found_; }

  void started(const SweepJob& job, const TuneSettings& settings) const;
  void ended(const SweepResult& result) const;

 private:
  void read(const std::string& base, const std::string& identity);

  LineJournal lines_;
  std::vector<Event> found_;
};

}  // namespace lockstep
