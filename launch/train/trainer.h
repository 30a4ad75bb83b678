// SPDX-License-Identifier: Apache-2.0
//
// Trainer: the training loop, on any number of ranks and any device. The one file to read to understand
// Lockstep: each step runs the micro-batches, sends full gradient buckets during backward, waits for them,
// checks that all ranks can continue, and updates the parameters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/communicator_gather.h"
#include "comm/gradients/buckets.h"
#include "comm/in_process/neighbour_slots.h"
#include "core/step_slot.h"
#include "core/timeline.h"
#include "data/batch_loader.h"
#include "data/device_batches.h"
#include "launch/train/clock/device_marks.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/step_clock.h"
#include "launch/train/evaluation/metrics.h"
#include "launch/train/step/exchanged_rate.h"
#include "launch/train/step/loss_totals.h"
#include "launch/train/step/step_recordings.h"
#include "launch/train/step/step_results.h"
#include "launch/train/step/step_statistics.h"
#include "launch/train/step_ends/step_end.h"
#include "launch/train/training_observer.h"
#include "launch/train/training_records.h"
#include "launch/train/trials/codec_trial.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/schedule.h"
#include "models/weight_average.h"

namespace lockstep {

struct TrainerOptions {
  std::int64_t accumulation = 1;  // micro-batches per rank and step: LoaderOptions::accumulation of `train`
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;      // stop after this number of steps; 0: run all epochs
  bool record_steps = true;        // on a GPU: record a step once, then replay it as a whole
  std::int64_t enqueue_every = 0;  // one step in this many is not replayed but enqueued; 0: none
  bool cross_barrier = false;      // see CrossBarrier
  // See LocalSgd: steps from one average of parameters to the next, and synchronous steps before the first
  // local one. 0: ranks exchange gradients in every step.
  std::int64_t average_every = 0;
  std::int64_t average_after = 0;
  // ring: see Gossip. Ranks train separately and wait for each other when an epoch is evaluated.
  Topology topology = Topology::all;
  // Largest norm of a step's gradients, over all parameters; larger gradients are scaled to it. 0: no
  // clipping.
  double clip_norm = 0;
  // EMA decay. Evaluation and export use the averaged weights. 0 disables it.
  double ema_decay = 0;
  // Steps in a row that may be skipped because gradients are not finite; one more ends the training. Steps
  // that fp16's loss scale can handle by falling do not count.
  std::int64_t max_skipped_steps = 0;
  MetricChoice metrics;
  // Epochs from one evaluation to the next; 0: only the last epoch, which is always evaluated.
  std::int64_t evaluate_epochs = 1;
  // Steps from one evaluation within an epoch to the next, counted from the start of training; 0: none.
  std::int64_t evaluate_every = 0;
  // Steps of an epoch from one for which observers read the norm of the gradients (LastStep) to the next;
  // that of the last step before an evaluation or the epoch's end is computed, too. 0: none. A GPU computes
  // it in every step unless 0.
  std::int64_t norm_every = 0;
  // File to which rank 0 saves the last good state when gradients stop being finite; empty: none. A symbolic
  // link at this path is replaced.
  std::filesystem::path last_good;
  CodecTrialOptions codec_trial;
};

// This rank's own step time in seconds, excluding waits for peers: of its thread (OwnTime) and of its GPU.
// Only differences are meaningful.
struct OwnSeconds {
  double host = 0;
  double device = 0;
};

class Trainer {
 public:
  // All must outlive the trainer. The loaders' shards are this rank's, and their batch size is the network's.
  // `test` pads (Tail::pad), has accumulation 1 and does not augment. The trainer moves `train` to its
  // beginning. Pointers may be null.
  struct Parts {
    Network& network;
    GradientBuckets& buckets;
    Optimizer& optimizer;
    BatchLoader& train;
    BatchLoader& test;
    Communicator& communicator;
    Timeline* timeline = nullptr;
    LayerObserver* observer = nullptr;
    // For synchronised batch norm, over all ranks; null: not synchronised.
    CommunicatorGather* across = nullptr;
    // Updates running statistics once per step, with all micro-batches; null: each micro-batch updates its
    // own rank's.
    StepStatistics* step_statistics = nullptr;
  };
  // Collective.
  Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options);

  // Collective. Trains the remaining epochs; each ends with an evaluation, if due. Calls the observers in
  // order (training_observer.h) and returns early if one stops the training. They outlive the call.
  void fit(std::span<TrainingObserver* const> observers);
  void fit(std::initializer_list<TrainingObserver*> observers = {}) {
    fit(std::span(observers.begin(), observers.size()));
  }

  // One optimizer step: accumulation micro-batches, one exchange of gradients. Collective. Gradients that are
  // not finite skip the step. Nothing else happens if a dynamic loss scale can still fall, or
  // max_skipped_steps allows it. Otherwise the last good state is saved and an agreed Error names the step,
  // the ranks and the layer where it began: at once on a CPU, after the next step on a GPU or with
  // cross_barrier. The saved state is the one before the failed step. On a GPU where steps may be skipped it
  // may be the one after the following step; the Error says which.
  // Exceptions: DelayedGradients are judged one step late. With LocalSgd each rank judges its own gradients
  // and skips alone, and a failure ends the training on all ranks at the next average. With Gossip each rank
  // takes its own steps, and step() is not collective.
  void step();
  // Evaluates the whole test set, each sample once. Uses the mean over ranks of the running statistics and,
  // where ranks train separately, of the parameters, which exports and digests use until the next step; with
  // an EMA, the averaged parameters. Does not change training. Collective. progress: called after each batch,
  // with its number from 1.
  using EvaluationProgress = std::function<void(std::int64_t batch, std::int64_t batches)>;
  Evaluation evaluate(const EvaluationProgress& progress = nullptr);
  // Calls work() while the network holds the parameters for evaluation (the EMA, if there is one) and nothing
  // else is under way, then restores training's. Call between steps.
  void with_evaluated_weights(const std::function<void()>& work);
  // Null without an EMA.
  WeightAverage* weight_average() { return average_ ? &*average_ : nullptr; }
  // Visits everything the next step depends on: the state of network and optimizer, the position (steps,
  // epoch, step of the epoch, seed of the sample order), the epoch's sums so far, and the number of steps
  // that were skipped in a row (max_skipped_steps). Waits for the steps under way. After a visitor that
  // writes, training resumes from that state: bit for bit with the same options, data and ranks. On a GPU,
  // restore before the first step: a restore changes no recorded step and no codec's step count. Throws
  // ConfigError for a state with another seed, DataError for an invalid position. Collective.
  void visit_state(StateVisitor& visitor);
  // Visits only the choice of codecs (comm.codec = "auto"), which determines the state of the exchange.
  // Collective.
  void visit_codecs(StateVisitor& visitor);
  // Calls the observers' saving(), and gives the network the running statistics of an evaluation, so that the
  // state that is saved next can be evaluated. Does not change training. Collective; call between steps.
  void prepare_to_save();

  std::int64_t steps() const { return position_.step; }
  // Call between steps, after finish_steps(), on all ranks alike; null: no observer. On a CPU the observer is
  // called as layers run. On a GPU events on the device take the times, and it is called for all layers of a
  // step, replayed or not, when the host reads the results of the step.
  void observe_layers(LayerObserver* observer);
  bool replays_steps() const { return recordings_.records(); }
  // Collective; call between steps. Waits for the steps under way, so that the timeline contains them.
  void finish_steps();
  Device device() const { return parts_.network.device(); }
  // How far a GPU is with its steps. Any thread, during training.
  DevicePlace device_place() const { return marks_.place(); }
  // With comm.codec = "auto": sets each bucket's codec and ends the trial of codecs. Collective; call between
  // steps.
  void choose_codecs(std::span<const int> by_bucket);
  // While held, the trial of codecs pauses: for steps that are measured, or undone later.
  void hold_codecs(bool held) { codecs_held_ = held; }
  // On a ring, the steps of each rank in the last trained epoch; otherwise empty.
  const std::vector<std::int64_t>& steps_by_rank() const { return steps_by_rank_; }
  // Completed epochs.
  std::int64_t epochs() const { return position_.epoch; }
  // True if the epoch is reported, and evaluated if due, before another step.
  bool epoch_ends_next() const { return epoch_ends_after(position_.epoch_step, position_.step); }
  // True if train.steps ended the epoch early, and that part of it is reported.
  bool reported_early() const { return position_.reported && position_.epoch_step > 0; }
  // Makes done() true. Call between steps, on all ranks alike.
  void end() { position_.ended = true; }
  // True if fit() has nothing left to do.
  bool done() const {
    return position_.ended || position_.epoch >= options_.epochs ||
           (stopped() && (position_.reported || position_.epoch_step == 0));
  }
  // For observers, between steps. totals() reads clocks; the others return stored values.
  StepTotals totals();
  LastStep last_step() const;
  double next_learning_rate() const { return learning_rate_at(position_.step); }
  // Steps of this trainer whose results the host has read.
  std::int64_t settled_steps() const { return settled_.steps; }
  // True if the buckets still hold the gradients of the last step, times gradients_scale(). Not if later
  // gradients or averaged parameters have overwritten them, nor between restoring a state and the next step.
  bool holds_gradients() const;
  float gradients_scale() const { return settled_.gradients_scale; }
  // See StepClock. take_account() waits for the steps under way.
  StepAccount take_account();
  StepAccount take_host_account() { return clock_.take_host(); }
  OwnSeconds own_seconds() {
    return {.host = clock_.own_host_seconds(), .device = clock_.own_device_seconds()};
  }
  // Mean seconds for which the compute threads were ready and had no core. Only differences are meaningful.
  // Counts the training thread only in forward, backward and optimizer.
  double compute_without_core();
  // Runs the micro-batches of a step without exchange and update, for measurements. Calls
  // after_micro_batch() after each; the gradients then are this rank's own, the mean over the micro-batch
  // times the loss scale. Consumes samples and changes running statistics. After the first step, not allowed
  // if a step ends within the next (CrossingEnd). Collective only with synchronised batch norm.
  void rehearse(const std::function<void()>& after_micro_batch = nullptr);
  // True if all ranks are at the same step between steps.
  bool in_lockstep() const { return end_->shared_steps() == nullptr; }
  // True on a ring, and after a local or averaging step: ranks do not wait for each other in every step.
  bool trains_apart() const {
    return !in_lockstep() ||
           (position_.step > 0 && end_->kind_of(position_.step - 1) != StepKind::synchronous);
  }
  // False after a local step, in which ranks do not wait for each other. True on a ring, between epochs, and
  // of one rank.
  bool ranks_met() const {
    return !in_lockstep() || parts_.communicator.size() == 1 || position_.step == 0 ||
           end_->kind_of(position_.step - 1) != StepKind::local;
  }

 private:
  // The next step is `step` of the training and `epoch_step` of `epoch`. On a ring it counts the steps of all
  // ranks divided by their number, rounded up where a signal ends an epoch; this rank's place in the data
  // differs.
  struct StepPosition {
    std::int64_t step = 0;
    std::int64_t epoch = 0;
    std::int64_t epoch_step = 0;
  };
  struct Position : StepPosition {
    std::int64_t reported = 0;  // 1: all trained steps of the epoch are reported
    bool ended = false;
    std::int64_t enqueued = 0;  // steps by this trainer
    std::int64_t restored = 0;  // value of enqueued when a state was last restored
  };
  // Steps whose results the host has read.
  struct SettledSteps {
    std::int64_t steps = 0;
    std::int64_t undone = 0;             // by return_to_last_good()
    std::int64_t epoch_begin = 0;        // number of steps enqueued before the epoch's first
    LossTotals losses;                   // of this rank in the epoch
    std::int64_t skipped = 0;            // in the epoch; see skipped_on_all_ranks()
    std::int64_t bad_in_a_row = 0;       // skipped, and no smaller loss scale fixes it
    float loss_scale = 1;                // after the last step
    double gradient_norm = 0;            // of the last step; NaN: not computed
    float gradients_scale = 1;           // loss scale of that step's gradients
    std::string not_finite_origin = {};  // result of find_not_finite()
  };
  // One run of fit() through an epoch: where it began, and the evaluations within it.
  struct EpochRun {
    std::int64_t begin_ns = 0;
    std::int64_t first_step = 0;  // of the epoch
    std::int64_t end_step = 0;    // exclusive
    std::int64_t settled_before = 0;
    ProcessorAccount processor;
    double compute_without_core = 0, communication_without_core = 0;
    std::int64_t evaluations = 0;
    double pause_seconds = 0, metrics_seconds = 0;
  };

  // 1 / samples of a step: those of all ranks, or this rank's if it does not exchange its gradients.
  float gradient_scale() const;
  void enqueue_step();
  // exchange: for the step's last micro-batch, if its buckets are sent during backward; else null.
  void micro_batch(std::int64_t micro, GradientListener* exchange);
  void learn_order();
  // Steps that the host does not wait for after enqueueing: none on a CPU, the last one on a GPU or if steps
  // cross. Every rank reads a step's result at the same point of its loop.
  std::int64_t lag() const;
  // Reads the results of all enqueued steps but the last `lag`, when the device has completed them. All ranks
  // do so at the same point of the loop.
  void settle_all_but(std::int64_t lag);
  void settle(StepSlot slot);
  [[noreturn]] void stop_not_finite(const StepFailure& failure);
  // Collective, with no step under way. StepEnd::share_state(), whose failure ends the training.
  void share_state(StateUse use);
  void report_skipped(const StepVerdict& verdict);
  // The result of NotFiniteSearch for this step, from 1, which is computed again. Not collective, except with
  // synchronised batch norm.
  std::string find_not_finite(std::int64_t step);
  // Returns text for the error message.
  std::string save_last_good(std::int64_t failed_step);  // from 1
  std::string write_last_good();
  // Collective. Copies the state of a rank with finite parameters to all ranks if some have none. False: no
  // rank's are finite.
  bool share_finite_state();
  // Moves the position before the failed step, or after the next one if that was taken.
  void return_to_last_good(std::int64_t failed_step, bool next_done);
  StepPosition position_before(std::int64_t step) const;  // from 1

  // True if an evaluation within the epoch (TrainerOptions::evaluate_every) precedes the next step.
  bool evaluates_within() const { return evaluates_within(position_.epoch_step, position_.step); }
  // CPU time of this process so far. With one rank, communication is 0. NCCL's own threads count as compute.
  ProcessorAccount processor_account();
  void train_epochs();
  // nullopt: an observer stopped the training.
  std::optional<EpochRecord> train_epoch();
  EpochRun begin_run();
  // Collective.
  EpochRecord record_of(const EpochRun& run);
  double samples_per_second(const EpochRun& run) const;
  double learning_rate_at(std::int64_t step) const { return schedule_.at(step + schedule_lead_); }
  // Collective. Evaluates within the epoch. False: an observer stopped the training.
  bool pause_to_evaluate(EpochRun& run);
  // Collective. Evaluates after the epoch, if due, and adds the result. False: as above.
  bool evaluate_epoch(EpochRecord& record);
  // Returns nullopt if progress() returned false, as it does on all ranks alike.
  std::optional<Evaluation> evaluate_while(const std::function<bool(std::int64_t, std::int64_t)>& progress);
  // The same, with the weights that the network holds.
  std::optional<Evaluation> evaluate_network(const std::function<bool(std::int64_t, std::int64_t)>& progress);
  std::optional<Evaluation> evaluate_for_observers();
  // Call before each step of an epoch. Sets the position and whether the norm is computed; false: no step is
  // left.
  bool begin_next_step(std::int64_t end_step);
  bool observers_continue();
  void move_to(std::int64_t epoch_step);
  bool wants_norm() const;
  // Total so far; see EpochRecord::communication_without_core.
  double communication_without_core();
  bool epoch_is_over() const { return position_.epoch_step == parts_.train.steps_in_epoch(position_.epoch); }
  // The times that a GPU takes in the step that begins.
  StepDetail detail() const;
  void begin_epoch();
  void begin_sums();
  void visit_position(StateVisitor& visitor);
  void visit_exchange(StateVisitor& visitor);
  void try_codecs(double step_seconds);
  void change_codecs(std::span<const int> by_bucket);
  void average_statistics();
  void swap_average();
  void warn_unless_finite(const LossTotals& all);
  void require_finite_state();
  std::int64_t skipped_on_all_ranks();
  bool stopped() const { return options_.max_steps > 0 && position_.step >= options_.max_steps; }
  bool epoch_ends_after(std::int64_t epoch_step, std::int64_t step) const {
    return epoch_step == parts_.train.steps_in_epoch(position_.epoch) ||
           (options_.max_steps > 0 && step >= options_.max_steps);
  }
  bool evaluates_within(std::int64_t epoch_step, std::int64_t step) const {
    return options_.evaluate_every > 0 && epoch_step > 0 && step % options_.evaluate_every == 0 &&
           !epoch_ends_after(epoch_step, step);
  }

  Parts parts_;
  Schedule schedule_;
  std::int64_t schedule_lead_ = 0;  // the schedule's place before position_.step, see Schedule::place()
  TrainerOptions options_;
  Stream stream_;
  DeviceBatches train_;
  DeviceBatches test_;
  std::optional<MetricCounter> metrics_;  // null if none are requested
  StepResults results_;
  ExchangedRate exchanged_rate_;
  DeviceMarks marks_;
  std::optional<Ledger> ledger_;  // times of buckets; null with one rank and no timeline
  StepClock clock_;
  std::unique_ptr<CodecTrial> codec_trial_;  // with comm.codec = "auto", if there is a choice; else null
  bool codecs_held_ = false;
  std::optional<WeightAverage> average_;
  StepRecordings recordings_;  // on the communicators of gradients and of layers
  std::unique_ptr<StepEnd> end_;
  bool traces_;                                        // a rank has a timeline
  std::span<TrainingObserver* const> observers_ = {};  // during fit()
  Position position_;
  StepPlace place_;                      // the step that is being enqueued
  StepPlan plan_;                        // of that step
  LayerMarker* layer_marker_ = nullptr;  // of the micro-batches that are being enqueued; may be null
  SettledSteps settled_;
  std::vector<std::int64_t> steps_by_rank_;  // see steps_by_rank()
  bool norm_wanted_ = false;                 // of the next step's gradients, on a CPU
};

}  // namespace lockstep
