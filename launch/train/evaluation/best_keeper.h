// SPDX-License-Identifier: Apache-2.0
//
// BestKeeper: acts on the evaluations after epochs. If one is the best so far, rank 0 writes the evaluated
// network to a file (run.keep_best). If none was better for run.stop_after_epochs epochs, all ranks end the
// training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "launch/train/evaluation/best_evaluation.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

class BestKeeper final : public TrainingObserver {
 public:
  struct Parts {
    BestEvaluation& best;
    Trainer& trainer;
    Communicator& host;                           // over host memory
    std::function<void(const std::string&)> say;  // prints a line
    std::filesystem::path file;                   // that save() writes
  };
  // The key of the file's metadata that holds the epoch of its network.
  static constexpr const char* kEpochKey = "lockstep.epoch";

  // save: writes the evaluated network of that epoch, or throws IoError; called on rank 0. Null, on all
  // ranks: nothing is saved. All parts outlive this. Precedes the checkpoints' keeper in the list of
  // observers, so that a checkpoint includes the result.
  BestKeeper(const Parts& parts, std::function<void(std::int64_t epoch)> save);

  void epoch_over(const EpochRecord& record) override;

  // Why the file lacks the best network, on rank 0: the last write failed, a resumed training did not find
  // it, or all losses were NaN. Empty: it is complete.
  std::string problem() const;

 private:
  void end_if_stopped();
  void keep(std::int64_t epoch);
  bool file_lacks(std::int64_t epoch) const;

  Parts parts_;
  std::function<void(std::int64_t)> save_;
  std::string problem_;
};

}  // namespace lockstep
