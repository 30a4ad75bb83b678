// SPDX-License-Identifier: Apache-2.0
//
// Formats the output and the files of `lockstep tune`: progress lines, a table, the winner's configuration,
// the evidence, and a chart of bucket sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/system/terminal.h"
#include "launch/program/config/config.h"
#include "launch/program/tune/search.h"

namespace lockstep {

// Facts of the job, for the evidence and the first lines.
struct TuneFacts {
  std::string command = {};
  std::string date = {};
  std::string program = {};
  std::string host = {};
  std::string processor = {};
  int cores = 1;  // of the machine of rank 0
  int ranks = 1;
  int nodes = 1;
  std::string device = {};
  std::string backend = {};
  std::int64_t global_batch = 1;
  std::int64_t block_steps = 1;
};

// The first text of a file that lockstep tune wrote. Only such a file is overwritten.
inline constexpr const char* kTunedMark = "# Written by lockstep tune";

// The progress line of a visit. figure: null if nothing was measured.
std::string visit_line(const TuneSettings& settings, const TuneFigure* figure, const std::string& problem);

// The default, then a line for each candidate, the fastest first: step and exposed communication in ms,
// samples/s, and the ratio to the default's samples/s with its interval. Fits the terminal, if there is one.
std::string tune_table(const TuneOutcome& outcome, const TuneFacts& facts, const Terminal& terminal);

// TOML of the whole configuration with the winner's settings, each below a comment with its evidence.
std::string tuned_toml(const Config& winner, const TuneOutcome& outcome, const TuneFacts& facts,
                       const Registry& registry);
// JSON: the job, every candidate with all its measurements, and the decision.
std::string tune_evidence(const TuneOutcome& outcome, const TuneFacts& facts);
// SVG of step time and exposed communication over the capacity of the middle buckets; nullopt where no
// capacities were compared.
std::optional<std::string> bucket_chart(const Config& config, const TuneOutcome& outcome,
                                        const TuneFacts& facts);

}  // namespace lockstep
