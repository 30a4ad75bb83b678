// SPDX-License-Identifier: Apache-2.0
//
// SweepOutcome: the results of a sweep, for its table, JSON, CSV and chart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/sweep/ranking.h"
#include "launch/program/tune/search.h"

namespace lockstep {

struct SweepRow {
  std::int64_t trial = 0;
  TuneSettings settings;
  std::int64_t epochs = 0;  // trained epochs; 0: failed before, or not begun
  std::int64_t steps = 0;
  SweepMeasure measure = {};  // of the last job; unset without epochs
  SweepCost cost = {};
  double seconds = 0;        // of all its jobs, except one that ran when its sweep was killed
  bool complete = false;     // trained for all epochs
  bool pareto = false;       // no complete trial dominates it in accuracy and speed
  std::string problem = {};  // reason of a failure; empty: none
};

struct SweepOutcome {
  SweepObjective objective = SweepObjective::accuracy;
  std::vector<SweepRow> rows = {};  // the best first; failed ones last
  std::int64_t epochs = 0;          // of a whole training
  std::int64_t slots = 1;
  // Jobs of this start only: their number, the seconds from the begin of the first to the end of the last,
  // and the share of that time in which slots were busy (nullopt without jobs).
  std::int64_t jobs = 0;
  double seconds = 0;
  std::optional<double> busy_share = {};

  std::int64_t steps() const;
  // Steps if every trial were trained whole, extrapolated from its epochs. Trials without an epoch count 0.
  std::int64_t steps_of_all() const;
  // The best complete trial; null: there is none.
  const SweepRow* best() const;
  // The first trial that failed; null: none did.
  const SweepRow* failure() const;
};

}  // namespace lockstep
