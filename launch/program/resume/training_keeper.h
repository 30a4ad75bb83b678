// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of `lockstep train`: restoring the state, the keeper of a training, and the last line of a
// stopped one.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/program/resume/resume.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/checkpoint/keeper.h"

namespace lockstep {

// Collective; errors are agreed. Restores the trainer to the saved state. toml: this training's
// configuration. Throws ConfigError for other data or another network, DataError for other state that does
// not fit. An optimizer of another name starts with the state of a new training.
void go_on_from(const SavedTraining& saved, const ResumeFlags& flags, const std::string& toml,
                Communicator& host, TrainingSetup& training, Trainer& trainer);
// Collective; errors are agreed. Restores only what an evaluation needs: the network, and the average of its
// weights. Throws ConfigError for other data or another network.
void restore_for_evaluation(const SavedTraining& saved, const ResumeFlags& flags, Communicator& host,
                            TrainingSetup& training, Trainer& trainer);

// Warns once if the learning rate of the next step is not the one that the saved training would have used,
// for example with more epochs.
void tell_changed_rate(const SavedTraining& saved, TrainingSetup& training, const Trainer& trainer,
                       const Registry& registry);

// The keeper of a training, and the state of the run that it saves beside the trainer's.
class TrainingKeeper {
 public:
  struct Calls {
    std::function<void(StateVisitor&)> also;  // visits more state of the run to save
    // See CheckpointKeeper::Parts.
    std::function<void(bool)> waiting;
    std::vector<std::filesystem::path> lines;
  };
  // Collective. Signals are handled from now on. config_text: as to_toml() writes it.
  TrainingKeeper(const Config& config, std::string config_text, Communicator& host, TrainingSetup& training,
                 Trainer& trainer, Calls calls);
  TrainingKeeper(const TrainingKeeper&) = delete;
  TrainingKeeper& operator=(const TrainingKeeper&) = delete;

  CheckpointKeeper& keeper() { return *keeper_; }

 private:
  std::int64_t threads_ = 0, planned_threads_ = 0;
  std::unique_ptr<CheckpointKeeper> keeper_;
};

// "SIGUSR1: training stopped after step 12, ..." and the command that resumes it. Throws an agreed IoError if
// the step was not saved.
struct StoppedLines {
  std::string what, command;
};
StoppedLines stopped_lines(const CheckpointKeeper& keeper, std::int64_t steps, int ranks);

}  // namespace lockstep
