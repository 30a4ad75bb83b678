// SPDX-License-Identifier: Apache-2.0
//
// SavedTraining: a checkpoint that was read, with which a training resumes. All ranks take the same
// decisions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/train/checkpoint/manifest.h"
#include "launch/train/checkpoint/other_ranks.h"
#include "models/state_copy.h"

namespace lockstep {

struct SavedTraining {
  std::filesystem::path folder;
  Manifest manifest;
  StateCopy state;               // for this rank
  MergedExchange exchange = {};  // for another number of ranks: input of deal()
  bool in_run_dir = true;        // false: its metric lines are in another folder

  // The integer that this rank saved under this name; 0 if there is none.
  std::int64_t number(const std::string& name) const;
};

// Checkpoints to resume from, newest first.
struct CheckpointCandidates {
  std::vector<std::filesystem::path> folders;
  bool named = false;  // the user named this checkpoint: no other may be used
};

// The checkpoints of a run's folder. Throws IoError if they cannot be listed.
CheckpointCandidates checkpoints_in(const std::filesystem::path& run_dir);
// The checkpoint of this checkpoint folder, or all checkpoints of this run's folder. The paths are absolute
// and do not end with a slash. asked: how the user named it, for messages. Throws DataError if there is none,
// IoError if they cannot be listed.
CheckpointCandidates checkpoints_of(const std::filesystem::path& given, const std::string& asked);
// Collective over host memory. Rank 0's candidates, on every rank.
CheckpointCandidates candidates_of_rank_0(Communicator& host, CheckpointCandidates mine);
// Collective over host memory; every error is agreed. Reads the first candidate that is intact, with a
// warning for each damaged one before it. Throws DataError if a named candidate is damaged, or all are.
SavedTraining first_intact(Communicator& host, const CheckpointCandidates& candidates);

// Collective over host memory; every error is agreed. The newest intact checkpoint in a run's folder, or the
// one in this checkpoint folder, of any training. Throws IoError and DataError.
SavedTraining newest_saved(Communicator& host, const std::filesystem::path& folder);

// Collective, before the first step: moves checkpoints of run_dir that do not precede this training's first
// step to a new folder. saved: null if training starts from the beginning. Throws an agreed IoError or
// DataError.
void set_aside_others(Communicator& host, const std::filesystem::path& run_dir, const SavedTraining* saved);

}  // namespace lockstep
