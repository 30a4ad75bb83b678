// SPDX-License-Identifier: Apache-2.0
//
// How a training goes on from what an earlier one saved: which checkpoint, whether it is sound and of the
// same training, and its state. All ranks decide alike.
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

// As a person gives them.
struct ResumeFlags {
  static constexpr const char* kNever = "never";  // what is in run.dir is set aside
  static constexpr const char* kAuto = "auto";    // from the newest of run.dir; from the start where none is
  static constexpr const char* kAnySize = "any";

  std::string from = kNever;      // or a folder: a checkpoint's, or a run's
  std::vector<std::string> with;  // keys that may differ from the saved configuration
  // any: on another number of ranks train.accumulation becomes what keeps a step's samples.
  std::string size = "same";
};

struct SavedTraining {
  std::filesystem::path folder;
  Manifest manifest;
  StateCopy state;               // for this rank
  MergedExchange exchange = {};  // with another number of ranks: what deal() is to deal out
  bool in_run_dir = true;        // else its lines of metrics are elsewhere

  // Of this rank; 0: not known.
  std::int64_t number(const std::string& name) const;
};

// Collective over host memory; every error is agreed. Nothing where training starts from the beginning. A
// damaged checkpoint that was named is a DataError; else the one before it is taken, with a warning, and the
// DataError comes where none is left. Throws ConfigError, naming the key, for another training: values that
// differ, or a number of ranks with which a step has other samples; UsageError for flags that make no sense.
std::optional<SavedTraining> find_saved(Communicator& host, const Config& config, const ResumeFlags& flags,
                                        const Registry& registry);

// Collective. What the newest of the checkpoints that find_saved() would look at says of a key, as TOML;
// empty where there is none that can be read.
std::string saved_setting(Communicator& host, const Config& config, const ResumeFlags& flags,
                          const Registry& registry, const std::string& key);

// Collective over host memory; every error is agreed. The newest checkpoint of a run's folder that is sound,
// or the one whose folder this is, whatever training it is of. Throws IoError and DataError.
SavedTraining newest_saved(Communicator& host, const std::filesystem::path& folder);

// Where the flags say so: gives the configuration the accumulation with which these ranks take the saved
// training's samples in a step, and tells of it. Behind find_saved(), which has made sure that there is one.
void keep_global_batch(const SavedTraining& saved, const ResumeFlags& flags, int ranks, Config& config);

// Collective, before the first step: checkpoints of run.dir that are not the past of this training move to a
// folder with a free name. Null: it starts. Throws an agreed IoError.
void set_aside_others(Communicator& host, const std::filesystem::path& run_dir, const SavedTraining* saved);

// Whether a training that differs in this key is another training. Others change how fast it is, or where
// its files are.
bool matters(const std::string& key);

}  // namespace lockstep
