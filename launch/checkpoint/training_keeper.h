// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep train` does with checkpoints: state into the training, a keeper beside it, and what to say
// at the end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/world.h"
#include "launch/checkpoint/keeper.h"
#include "launch/checkpoint/resume.h"
#include "launch/training.h"

namespace lockstep {

// Collective; errors are agreed. The trainer stands where the saved training stood. Throws ConfigError for
// other data, DataError where the state is not this network's.
void go_on_from(const SavedTraining& saved, const ResumeFlags& flags, Communicator& host, Training& training,
                Trainer& trainer);

// One warning where the learning rate of the next step is another one than the saved training would have
// taken, as with more epochs.
void tell_changed_rate(const SavedTraining& saved, const Training& training, const Registry& registry);

// The keeper of a training, and what of the run it saves beside the trainer's state.
class TrainingKeeper {
 public:
  // Collective. From now on signals are heeded. config_text: as to_toml writes it. also: state of the run
  // that is saved, too.
  TrainingKeeper(
      const Config& config, std::string config_text, Communicator& host, Training& training, Trainer& trainer,
      std::function<void(StateVisitor&)> also = [](StateVisitor&) {});
  TrainingKeeper(const TrainingKeeper&) = delete;
  TrainingKeeper& operator=(const TrainingKeeper&) = delete;

  CheckpointKeeper& keeper() { return *keeper_; }

 private:
  std::int64_t threads_ = 0, planned_threads_ = 0;
  std::unique_ptr<CheckpointKeeper> keeper_;
};

// "SIGUSR1: training stopped after step 12, ..." with the command that goes on. Throws an agreed IoError
// where the step was not saved.
std::string stopped_line(const CheckpointKeeper& keeper, std::int64_t steps, int ranks);

}  // namespace lockstep
