// SPDX-License-Identifier: Apache-2.0
//
// What a sweep came to, for whoever tells it: a table, JSON, CSV, a chart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/sweep/ranking.h"
#include "launch/tune/search.h"

namespace lockstep {

struct SweepRow {
  std::int64_t trial = 0;
  TuneSettings settings;
  std::int64_t epochs = 0;  // it was trained for; 0: it failed before
  std::int64_t steps = 0;
  SweepMeasure measure = {};  // where there are epochs
  double seconds = 0;         // of all its jobs
  bool complete = false;      // all epochs
  bool pareto = false;        // among those that are complete none is better in accuracy and speed
  std::string problem = {};   // why it failed; empty: it did not
};

struct SweepOutcome {
  SweepObjective objective = SweepObjective::accuracy;
  std::vector<SweepRow> rows = {};  // the best first, and those that failed last
  std::int64_t epochs = 0;          // of a whole training
  std::int64_t slots = 1;
  // Of this start: jobs, from the first one's begin to the last one's end, and the share of the slots' time
  // in it that jobs took. None where nothing was left to do.
  std::int64_t jobs = 0;
  double seconds = 0;
  std::optional<double> busy_share = {};

  std::int64_t steps() const;
  // That all trials take where each is trained whole; of those that failed at once nothing is known.
  std::int64_t steps_of_all() const;
  // The best of those that are complete; null: there is none.
  const SweepRow* best() const;
};

}  // namespace lockstep
