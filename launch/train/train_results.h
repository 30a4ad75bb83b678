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

// Rank 0's: the files that --export, --digest and --trace ask for. Whatever can be written is, before an
// IoError tells of the rest, and of what could not be written while it trained. digest: of digest_of().
void write_results(const Command& command, TrainRun& run, const std::string& digest);

}  // namespace lockstep
