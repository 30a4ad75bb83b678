// SPDX-License-Identifier: Apache-2.0
//
// Formats the output and the files of `lockstep sweep`.
#pragma once

#include <cstdint>
#include <string>

#include "core/system/terminal.h"
#include "launch/program/sweep/jobs/journal.h"
#include "launch/program/sweep/jobs/outcome.h"
#include "launch/program/sweep/jobs/slots.h"
#include "launch/program/sweep/plan.h"

namespace lockstep {

// The text before the first job. epochs_done: epochs that earlier starts completed.
std::string sweep_header(const SweepPlan& plan, const SweepSlots& slots, std::int64_t epochs,
                         std::int64_t epochs_done);
// The line of a job that has ended. epochs: of the trial's whole training.
std::string sweep_result_line(const SweepResult& result, const TuneSettings& settings, std::int64_t epochs);
// The header and a line for each trial, for --print.
std::string sweep_trials(const SweepPlan& plan, const SweepSlots& slots);

// A line for each trial, the best first, with a star on the Pareto front, then the steps and the time of the
// sweep. Fits the terminal, if there is one.
std::string sweep_table(const SweepOutcome& outcome, const Terminal& terminal);
// A JSON object. dir: of the sweep.
std::string sweep_json(const SweepOutcome& outcome, const std::string& dir);
// CSV (RFC 4180): a line of names, then a line for each trial.
std::string sweep_csv(const SweepOutcome& outcome, const SweepSpace& space);
// TOML of the best trial's whole configuration, below a comment with its results. ranks: of each trial.
std::string best_toml(const SweepRow& best, const Config& config, const Registry& registry,
                      std::int64_t ranks);

}  // namespace lockstep
