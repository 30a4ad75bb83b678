// SPDX-License-Identifier: Apache-2.0
//
// What a training leaves beside its report: the network that it trained, its digest and its trace.
#pragma once

#include <filesystem>
#include <string>

#include "launch/commands/commands.h"
#include "launch/train/train_run.h"

namespace lockstep {

// Of all that ranks share (digest.h).
std::string digest_of(TrainRun& run);

// Writes the weights that are evaluated, in the precision of exports. Throws IoError.
void save_evaluated(TrainRun& run, const Registry& registry, const std::filesystem::path& path);

// Files that could not be written.
struct Unwritten {
  std::string problems;  // empty: all were written
  bool results = false;  // a result is among them; else only files that are written during training
};

// Rank 0's: writes the files that --export, --digest and --trace ask for, as many as can be written. digest:
// of digest_of().
Unwritten write_results(const Command& command, TrainRun& run, const std::string& digest);

}  // namespace lockstep
