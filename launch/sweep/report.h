// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep sweep` says and writes.
#pragma once

#include <cstdint>
#include <string>

#include "launch/sweep/journal.h"
#include "launch/sweep/outcome.h"
#include "launch/sweep/plan.h"
#include "launch/sweep/slots.h"
#include "launch/terminal/terminal.h"

namespace lockstep {

// Lines before the first job. epochs_done: by earlier starts.
std::string sweep_header(const SweepPlan& plan, const SweepSlots& slots, std::int64_t epochs,
                         std::int64_t epochs_done);
// A line about a job that has ended.
std::string sweep_result_line(const SweepResult& result, const TuneSettings& settings, std::int64_t epochs);
// Every trial that there is, a line each, for who only wants to see them.
std::string sweep_trials(const SweepPlan& plan, const SweepSlots& slots);

// A line for each trial, the best first, those on the Pareto front marked with a star; and what it took. Fits
// the terminal, if there is one.
std::string sweep_table(const SweepOutcome& outcome, const Terminal& terminal);
// An object of JSON. dir: of the sweep.
std::string sweep_json(const SweepOutcome& outcome, const std::string& dir);
// A line of names, then one for each trial, as RFC 4180 has it.
std::string sweep_csv(const SweepOutcome& outcome, const SweepSpace& space);
// TOML of the best trial's whole configuration, with what it came to above it.
std::string best_toml(const SweepRow& best, const Config& config, const Registry& registry);

}  // namespace lockstep
