// SPDX-License-Identifier: Apache-2.0
//
// Resumes a training from a checkpoint of an earlier one: finds the checkpoint, checks that it is intact and
// belongs to the same training, and returns its state. All ranks take the same decisions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/program/config/config.h"
#include "launch/train/checkpoint/saved_training.h"

namespace lockstep {

// The flags as given on the command line.
struct ResumeFlags {
  static constexpr const char* kNever = "never";  // from the start; renames run.dir's checkpoints
  static constexpr const char* kAuto = "auto";  // from the newest in run.dir; from the start if there is none
  static constexpr const char* kAnySize = "any";

  std::string from = kNever;      // or the folder of a checkpoint or a run
  std::vector<std::string> with;  // keys that may differ from the saved configuration
  // any: on another number of ranks, change train.accumulation so that a step has as many samples.
  std::string size = "same";
  // Not a flag: the command only evaluates the saved network, which any number of ranks can do.
  bool evaluates = false;
};
// The flags as on the command line. All ranks need the same: see require_same_flags().
std::string to_text(const ResumeFlags& flags);

// Collective over host memory; every error is agreed. Returns nothing if the training starts from the
// beginning. A damaged checkpoint that the flags name is a DataError; otherwise the one before it is used,
// with a warning, and a DataError if none is left. Throws ConfigError, naming the key, for another training:
// values that differ, or a number of ranks that changes the samples per step. Throws UsageError for an
// unknown key of --resume-with, and for --resume-with or --resume-size any with kNever. Throws IoError for a
// folder that does not exist or cannot be listed.
std::optional<SavedTraining> find_saved(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry);

// Collective. For the settings that `config` leaves open ("auto"): overrides with the values of the newest
// readable checkpoint of those that find_saved() considers. Without such a checkpoint, or such a value, there
// is no override.
std::vector<std::string> saved_settings(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry);

// The saved keys of the sections model and data, for config_of(). The other sections do not change what the
// network computes.
struct NetworkSettings {
  std::vector<std::string> settings;  // "section.key=value"
  std::vector<std::string> unknown;   // keys that this program lacks
};
NetworkSettings network_settings(const Manifest& manifest, const Registry& registry);

// With --resume-size any: sets the accumulation that keeps the samples per step of the saved training on
// these ranks, and logs it. Call it after find_saved(), which checks that such an accumulation exists.
void keep_global_batch(const SavedTraining& saved, const ResumeFlags& flags, int ranks, Config& config);

}  // namespace lockstep
