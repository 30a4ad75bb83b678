// SPDX-License-Identifier: Apache-2.0
//
// CheckpointKeeper: saves a training while it runs. When a checkpoint is due, every rank copies its state to
// host memory between two steps, and a thread of each rank writes the copy while training continues. Ranks
// agree between later steps that all have written their files. Rank 0's thread then adds the manifest and
// renames the folder, which completes the checkpoint. One checkpoint is written at a time. If it is not
// complete when the next is due by the number of steps or for the best accuracy, training waits for it; one
// due by time or by a request is postponed, at most to the end of the epoch.
//
// Rank 0 saves the shared state. If `compares` is set, the other ranks hash theirs: if it differs in a bit,
// the checkpoint is not written and the job ends.
//
// A checkpoint that cannot be written causes a warning, or with run.checkpoint_errors = "stop" an orderly end
// of the training. Earlier checkpoints stay in both cases.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "launch/train/checkpoint/manifest.h"
#include "launch/train/checkpoint/settings.h"
#include "launch/train/checkpoint/shard.h"
#include "launch/train/checkpoint/step_agreement.h"
#include "launch/train/checkpoint/stop_signals.h"
#include "launch/train/checkpoint/store.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

class CheckpointKeeper final : public TrainingObserver {
 public:
  struct Parts {
    Trainer& trainer;
    Communicator& host;  // of host memory
    StopSignals& signals;
    Device device;  // of the state
    // Save shared state only if it is identical on all ranks (run.check_every).
    bool compares = false;
    // State of the run that the trainer does not own; saved with the trainer's.
    std::function<void(StateVisitor&)> also = [](StateVisitor&) {};
    // Called with true when training begins to wait for a checkpoint, and with false afterwards.
    std::function<void(bool)> waiting = [](bool) {};
    // Files to which training appends lines. Rank 0 syncs them before a checkpoint gets its final name.
    std::vector<std::filesystem::path> lines = {};
    std::function<std::int64_t()> clock = now_ns;  // when checkpoints are due
  };
  // Collective. manifest: all fields that do not change during the training.
  CheckpointKeeper(const Parts& parts, const CheckpointSettings& settings,
                   const std::filesystem::path& run_dir, Manifest manifest);
  // Waits for this rank's thread.
  ~CheckpointKeeper() override;

  bool goes_on() override;
  bool wants_to_meet() override;
  // Between batches of an evaluation a signal counts as between two steps. It ends the evaluation, and
  // finish() saves.
  bool evaluating(std::int64_t batch, std::int64_t batches) override;
  void epoch_over(const EpochRecord& record) override;
  std::string save_last_good() override;
  // Collective, after the training: writes the last checkpoint if the settings make any, or after an
  // evaluation that a signal ended. Throws an agreed IoError if it cannot be written and errors stop a
  // training.
  void finish();
  // Collective, after finish(), if a result could not be written: saves the trained state unless it is saved
  // already. Returns the text to append to the error message; rank 0's counts.
  std::string save_for_results();
  // The signal that stopped the training; 0: none.
  int stopped_by() const { return stopped_by_; }
  // The newest complete checkpoint in the run's folder; empty: none. Set on rank 0 only.
  const std::filesystem::path& last() const { return last_; }
  // Why the last checkpoint could not be written; empty: it was written. The same on every rank.
  const std::string& problem() const { return problem_; }

 private:
  // The checkpoint that is being written. The same on every rank.
  struct Writing {
    std::int64_t steps = 0;
    double best_before = -1;   // best_accuracy_ without it
    bool shards_done = false;  // on every rank; the manifest is being written
  };

  StepAgreement::Wishes wishes();
  void apply(const StepAgreement::Wishes& agreed);
  bool due_by_number() const;
  // remedy: what makes checkpoints that are due for the same reason rarer.
  void wait_for_previous(std::string_view remedy);
  // Copies the state and starts to write it. No other checkpoint is being written.
  void begin(std::optional<double> test_accuracy);
  // Collective. The threads of all ranks have ended the phase; starts the next one, or ends the checkpoint.
  void continue_writing();
  // Waits until no checkpoint is being written.
  void wait();
  void save_now(std::optional<double> test_accuracy);
  // Collective, on ranks whose threads have ended.
  void require_same_copies();
  void remove_partial(std::int64_t steps);
  void finish_writing(const std::string& problem);
  void commit(const Manifest& manifest);
  std::string write_shards(std::int64_t steps);
  void start_phase(std::function<std::string()> work);

  Parts parts_;
  CheckpointSettings settings_;
  CheckpointStore store_;
  Manifest manifest_;
  StepAgreement agreement_;
  StateSnapshotTaker snapshot_;
  std::vector<TensorHash> hashes_;  // of the snapshot; on rank 0 its thread computes them
  std::optional<Writing> writing_;
  std::future<std::string> thread_;  // of this rank; returns its result as text
  std::int32_t phases_ = 0;          // started so far, over all checkpoints: shards, then a manifest
  bool evaluation_abandoned_ = false;
  bool postponed_ = false;      // save once the current checkpoint is written, or after the epoch
  bool wants_to_save_ = false;  // this rank
  std::int32_t agreed_saves_ = 0;
  bool reported_wait_ = false;
  std::int64_t saved_steps_ = -1;   // of the last checkpoint that was begun or resumed from
  bool saved_evaluated_ = false;    // its manifest has the accuracy
  std::optional<double> accuracy_;  // of exactly this state
  double best_accuracy_ = -1;
  std::int64_t last_ns_ = 0;  // when the last one was begun or agreed on; rank 0's value counts
  std::int64_t begun_ns_ = 0;
  double snapshot_seconds_ = 0;
  int stopped_by_ = 0;
  bool ends_ = false;               // no step follows
  std::int64_t warned_steps_ = -1;  // of the last checkpoint whose failure caused a warning
  std::filesystem::path last_;
  std::string problem_;
};

}  // namespace lockstep
