// SPDX-License-Identifier: Apache-2.0
//
// Resumes a training from what an earlier one saved: finds the checkpoint, checks that it is intact and
// belongs to the same training, and returns its state. All ranks take the same decisions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/train/checkpoint/saved_training.h"
#include "launch/program/config/config.h"

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

// With --resume-size any: sets the accumulation with which these ranks take as many samples in a step as the
// saved training, and logs it. Call it after find_saved(), which has checked that there is one.
void keep_global_batch(const SavedTraining& saved, const ResumeFlags& flags, int ranks, Config& config);

// True if a training with another value of this key is a different training. The other keys change its speed,
// its files, its output or its end.
bool matters(const std::string& key);

}  // namespace lockstep
