// SPDX-License-Identifier: Apache-2.0
//
// The results of a training in addition to its report: the trained network, its digest and its trace.
#pragma once

#include <filesystem>
#include <string>

#include "core/files/safetensors.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/train_command/train_job.h"

namespace lockstep {

// The hash of all state that the ranks share (digest.h).
std::string digest_of(TrainJob& job);

// Writes the evaluated weights (the average, where one is kept) in the export precision, with the network's
// facts beside the metadata of the options. Throws IoError.
void save_evaluated(TrainJob& job, const Registry& registry, const std::filesystem::path& path,
                    SafetensorsOptions options = {});

// Files that could not be written.
struct Unwritten {
  std::string problems;  // empty: all were written
  bool results = false;  // includes a result; else only files that are written during training
};

// Called on rank 0: writes the files of --export, --digest and --trace, and continues after an IoError.
// digest: from digest_of().
Unwritten write_results(const Command& command, TrainJob& job, const std::string& digest);

}  // namespace lockstep
