// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep tune` says and writes of a search: lines while it goes on, a table, the winner's
// configuration, the evidence, and a chart of bucket sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/config/config.h"
#include "launch/terminal/terminal.h"
#include "launch/tune/search.h"

namespace lockstep {

// Of the job; for the evidence and the first lines.
struct TuneFacts {
  std::string command = {};
  std::string date = {};
  std::string program = {};
  std::string host = {};
  std::string processor = {};
  int cores = 1;  // of rank 0's machine
  int ranks = 1;
  int nodes = 1;
  std::string device = {};
  std::string backend = {};
  std::int64_t global_batch = 1;
  std::int64_t block_steps = 1;
};

// How a file that lockstep tune wrote begins; no other is written over.
inline constexpr const char* kTunedMark = "# Written by lockstep tune";

// A line of the search under way. figure: null where there is none.
std::string visit_line(const TuneSettings& settings, const TuneFigure* figure, const std::string& problem);

// A line for each of the settings, the fastest first: step and exposed communication in milliseconds,
// samples/s, and the ratio to the default's samples/s with its spread. Fits the terminal, if there is one.
std::string tune_table(const TuneOutcome& outcome, const TuneFacts& facts, const Terminal& terminal);

// TOML of the whole configuration with the winner's settings, each with its evidence above it.
std::string tuned_toml(const Config& winner, const TuneOutcome& outcome, const TuneFacts& facts,
                       const Registry& registry);
// JSON: the job, every candidate with all its measurements, and what was decided.
std::string tune_evidence(const TuneOutcome& outcome, const TuneFacts& facts);
// SVG of step time and exposed communication over the middle buckets' size; nothing where no sizes were
// compared.
std::optional<std::string> bucket_chart(const Config& config, const TuneOutcome& outcome,
                                        const TuneFacts& facts);

}  // namespace lockstep
