// SPDX-License-Identifier: Apache-2.0
//
// Resumes a training from what an earlier one saved: finds the checkpoint, checks that it is intact and
// belongs to the same training, and returns its state. All ranks take the same decisions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/checkpoint/manifest.h"
#include "launch/checkpoint/other_ranks.h"
#include "launch/config/config.h"
#include "models/state_copy.h"

namespace lockstep {

// The flags as given on the command line.
struct ResumeFlags {
  static constexpr const char* kNever = "never";  // start anew; run.dir's checkpoints are moved aside
  static constexpr const char* kAuto = "auto";  // from the newest in run.dir; from the start if there is none
  static constexpr const char* kAnySize = "any";

  std::string from = kNever;      // or the folder of a checkpoint or a run
  std::vector<std::string> with;  // keys that may differ from the saved configuration
  // any: on another number of ranks, change train.accumulation so that a step has as many samples.
  std::string size = "same";
};

struct SavedTraining {
  std::filesystem::path folder;
  Manifest manifest;
  StateCopy state;               // for this rank
  MergedExchange exchange = {};  // for another number of ranks: input of deal()
  bool in_run_dir = true;        // false: its metric lines are in another folder

  // The integer that this rank saved under this name; 0 if there is none.
  std::int64_t number(const std::string& name) const;
};

// Collective over host memory; every error is agreed. Returns nothing if the training starts from the
// beginning. A damaged checkpoint that the flags name is a DataError; otherwise the one before it is used,
// with a warning, and a DataError if none is left. Throws ConfigError, naming the key, for another training:
// values that differ, or a number of ranks with which a step has other samples. Throws UsageError for flags
// that are invalid.
std::optional<SavedTraining> find_saved(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry);

// Collective. The value of a key, as TOML, in the newest readable checkpoint of those that find_saved()
// considers; empty if there is none.
std::string saved_setting(Communicator& host, const Config& config, const ResumeFlags& flags,
                          const Registry& registry, const std::string& key);

// Collective over host memory; every error is agreed. The newest intact checkpoint in a run's folder, or the
// one in this checkpoint folder, of any training. Throws IoError and DataError.
SavedTraining newest_saved(Communicator& host, const std::filesystem::path& folder);

// With --resume-size any: sets the accumulation with which these ranks take as many samples in a step as the
// saved training, and logs it. Call it after find_saved(), which has checked that there is one.
void keep_global_batch(const SavedTraining& saved, const ResumeFlags& flags, int ranks, Config& config);

// Collective, before the first step: moves checkpoints of run.dir that are not the past of this training to a
// new folder. saved: null if training starts from the beginning. Throws an agreed IoError.
void set_aside_others(Communicator& host, const std::filesystem::path& run_dir, const SavedTraining* saved);

// True if a training with another value of this key is a different training. The other keys change its speed,
// its files, its output or its end.
bool matters(const std::string& key);

}  // namespace lockstep
