// SPDX-License-Identifier: Apache-2.0
//
// CheckpointKeeper: saves a training while it goes on. When a checkpoint is due, every rank copies its state
// to host memory between two steps; a thread of each rank writes the copy while training goes on. When all
// ranks have written theirs, which they learn between later steps, rank 0's thread adds the manifest and
// renames the whole: only then there is a checkpoint. One is written at a time: training waits for it where
// the next one is due by the number of steps, or has the best accuracy; one that somebody asked for, or that
// is due by time, waits itself.
//
// What is saved is rank 0's copy of what ranks share: the others hash theirs meanwhile, and where a bit
// differs there is no checkpoint, and the job ends.
//
// What cannot be written costs a warning, or with run.checkpoint_errors = "stop" the training, in order. What
// was saved before stays either way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/checkpoint/manifest.h"
#include "launch/checkpoint/settings.h"
#include "launch/checkpoint/shard.h"
#include "launch/checkpoint/step_agreement.h"
#include "launch/checkpoint/stop_signals.h"
#include "launch/checkpoint/store.h"
#include "launch/fit_observer.h"
#include "launch/trainer.h"

namespace lockstep {

class CheckpointKeeper final : public FitObserver {
 public:
  struct Parts {
    Trainer& trainer;
    Communicator& host;  // of host memory
    StopSignals& signals;
    Device device;  // of the state
    // Whether what ranks share must be the same on all of them to be saved (run.check_every).
    bool compares = false;
    // State of the run that is not the trainer's: shown with it.
    std::function<void(StateVisitor&)> also = [](StateVisitor&) {};
  };
  // Collective. manifest: all that does not change during the training.
  CheckpointKeeper(const Parts& parts, const CheckpointSettings& settings,
                   const std::filesystem::path& run_dir, Manifest manifest);
  // Waits for this rank's thread.
  ~CheckpointKeeper() override;

  bool goes_on() override;
  bool wants_to_meet() override;
  void epoch_over(const std::optional<Evaluation>& evaluation) override;
  std::string save_last_good() override;
  // Collective. After a batch of an evaluation, which counts as between two steps: false, on every rank
  // alike, where a signal asked to stop. The evaluation is given up, and finish() saves.
  bool evaluation_goes_on();
  // Collective, after the training: the last checkpoint, where any are made or a signal stopped it. Throws an
  // agreed IoError where it cannot be written and errors stop a training.
  void finish();
  // Collective, after finish(), where a result could not be written: saves what was trained, unless it is
  // saved. Returns what to say of that, on rank 0.
  std::string save_for_results();
  // The signal that stopped the training; 0: it was not stopped.
  int stopped_by() const { return stopped_by_; }
  // The newest checkpoint of this run; empty: there is none. On rank 0.
  const std::filesystem::path& last() const { return last_; }
  // Why the last one could not be written; empty: it was. The same on every rank.
  const std::string& problem() const { return problem_; }

 private:
  // Of the checkpoint that is being written, on every rank alike.
  struct Writing {
    std::int64_t steps = 0;
    bool shards_done = false;  // on every rank, and the manifest is being written
  };

  StepAgreement::Wishes wishes();
  void heed(const StepAgreement::Wishes& agreed);
  void wait_for_the_last();
  // Copies the state, and begins to write it. Nothing is being written.
  void begin(std::optional<double> test_accuracy);
  // This rank's thread is done; so are the others'. Goes on with what is next of it.
  void go_on_writing();
  // Until nothing is being written.
  void wait();
  void save_now(std::optional<double> test_accuracy);
  // Collective, on ranks whose threads are done.
  void require_same_copies();
  void end_with(const std::string& problem);
  void commit(const Manifest& manifest);
  std::string write_shards(std::int64_t steps);
  void start_phase(std::function<std::string()> work);

  Parts parts_;
  CheckpointSettings settings_;
  CheckpointStore store_;
  Manifest manifest_;
  StepAgreement agreement_;
  StateSnapshotTaker snapshot_;
  std::vector<TensorHash> hashes_;  // of the snapshot; of rank 0's its thread makes them
  std::optional<Writing> writing_;
  std::future<std::string> thread_;  // of this rank: what it has to tell
  std::int32_t phases_ = 0;          // that were begun, of all checkpoints: shards, then a manifest
  bool gave_up_evaluation_ = false;
  bool postponed_ = false;      // one is due when the one under way is written, or the epoch evaluated
  bool wants_to_save_ = false;  // this rank
  std::int32_t agreed_saves_ = 0;
  bool told_of_waiting_ = false;
  std::int64_t saved_steps_ = -1;   // of the last one that was begun, or gone on from
  bool saved_evaluated_ = false;    // and it knows its accuracy
  std::optional<double> accuracy_;  // of this very state
  double best_accuracy_ = -1;
  std::int64_t last_ns_ = 0;  // when the last one was begun; rank 0's counts
  std::int64_t begun_ns_ = 0;
  double snapshot_seconds_ = 0;
  int stopped_by_ = 0;
  std::filesystem::path last_;
  std::string problem_;
};

}  // namespace lockstep
