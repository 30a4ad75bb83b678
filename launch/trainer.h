// SPDX-License-Identifier: Apache-2.0
//
// Trainer: the training loop, on any number of ranks and any device. The one file to read to understand
// Lockstep: each step runs the micro-batches, lets full gradient buckets leave while backward goes on, waits
// for them, checks that everybody can go on, and updates.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/buckets.h"
#include "comm/communicator.h"
#include "comm/communicator_gather.h"
#include "comm/neighbour_slots.h"
#include "core/step_slot.h"
#include "core/timeline.h"
#include "data/batch_loader.h"
#include "data/device_batches.h"
#include "launch/account/advice.h"
#include "launch/account/device_marks.h"
#include "launch/account/ledger.h"
#include "launch/account/more_ranks.h"
#include "launch/account/step_clock.h"
#include "launch/account/step_series.h"
#include "launch/codec_trial.h"
#include "launch/exchanged_rate.h"
#include "launch/fit_observer.h"
#include "launch/loss_totals.h"
#include "launch/metrics.h"
#include "launch/monitor/shown_rank.h"
#include "launch/run_files/report.h"
#include "launch/step_ends/step_end.h"
#include "launch/step_recordings.h"
#include "launch/step_results.h"
#include "launch/step_statistics.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/schedule.h"
#include "models/weight_average.h"

namespace lockstep {

struct TrainerOptions {
  std::int64_t accumulation = 1;
  std::int64_t epochs = 1;
  std::int64_t until_epoch = 0;  // stop when so many are done, whatever else there would be; 0: run all
  std::int64_t max_steps = 0;    // stop after; 0: run all epochs
  bool record_steps = true;      // on a GPU: a step is recorded once and then replayed as a whole
  bool cross_barrier = false;    // see CrossBarrier
  // See LocalSgd: steps from one average of parameters to the next, and synchronous steps before the first
  // local one. 0: ranks exchange gradients in every step.
  std::int64_t average_every = 0;
  std::int64_t average_after = 0;
  // ring: see Gossip. Ranks train apart, and meet where an epoch is evaluated.
  Topology topology = Topology::all;
  // Gradients of a step are scaled to this norm where theirs, over all parameters, is larger; 0: never.
  double clip_norm = 0;
  // Of a WeightAverage, which is then what is evaluated; 0: there is none.
  double ema_decay = 0;
  // Steps in a row that may be skipped because gradients are not finite, before that ends the training. Those
  // that fp16's loss scale makes good are not counted.
  std::int64_t max_skipped_steps = 0;
  MetricChoice metrics;
  // Epochs from one that is evaluated to the next; 0: none but the last, which always is.
  std::int64_t evaluate_epochs = 1;
  // Steps from one evaluation within an epoch to the next, counted from the start of training; 0: none.
  std::int64_t evaluate_every = 0;
  std::int64_t log_every = 50;  // steps from one line of rank 0's StepSeries to the next; 0: none
  // Epochs from one that ends with histograms of weights and gradients to the next; 0: none.
  std::int64_t histograms_every = 0;
  // Where rank 0 leaves the last good state when the loss stops being finite; empty: nowhere.
  std::filesystem::path last_good;
  CodecTrialOptions codec_trial;
  AdviceContext advice;           // but for the step's time and samples per second
  std::optional<RanksNow> ranks;  // what more of them would bring is told; nothing: it is not
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // fraction
  std::int64_t samples = 0;
  std::optional<EvaluationMetrics> metrics = {};
};

// What a rank's steps took of it alone, in seconds: its thread (OwnTime), and a GPU. Whoever asks for the
// first time begins at 0.
struct OwnSeconds {
  double host = 0;
  double device = 0;
};

class Trainer {
 public:
  // All must outlive the trainer. The loaders' shards are this rank's; `test` pads (Tail::pad) and has the
  // network's batch. Pointers may be null.
  struct Parts {
    Network& network;
    GradientBuckets& buckets;
    Optimizer& optimizer;
    BatchLoader& train;
    BatchLoader& test;
    Communicator& communicator;
    Timeline* timeline = nullptr;
    LayerObserver* observer = nullptr;
    // Where the network's batch norm is synchronised: over as many ranks as there are.
    CommunicatorGather* across = nullptr;
    // Where running statistics are moved once a step, by all its micro-batches; null: by each, a rank's own.
    StepStatistics* step_statistics = nullptr;
  };
  // Collective.
  Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options);

  // All epochs from where training stands, each followed by an evaluation, where it is due, and a line of the
  // report, unless the observer stops it. Collective.
  void fit(Report& report, FitObserver* observer = nullptr);

  // One optimizer step: accumulation micro-batches, one exchange of gradients. Collective. Gradients that are
  // not finite skip it, and with a dynamic loss scale that can still fall, or as often as max_skipped_steps
  // allows, that is all. Otherwise the last good state is saved and an agreed Error names the step, the ranks
  // and the layer where it began: at once on a CPU, after the next step on a GPU. The state is that before
  // the step, but on a GPU where steps may be skipped the next one may have gone well; the Error tells.
  // Gradients that are exchanged a step late (DelayedGradients) are judged there. Where ranks train apart
  // (LocalSgd) each judges its own gradients and skips alone; what would end the training ends it with the
  // next average, on all ranks. On a ring (Gossip) a step is each rank's own, and no collective.
  void step();
  // The whole test set, each sample once, with the mean over ranks of the running statistics and, where ranks
  // train apart, of the parameters, which exports and digests hold until the next step; with the average of
  // parameters over the steps where one is kept. Training does not see it. Collective.
  // told: behind each batch of so many.
  using EvaluationTeller = std::function<void(std::int64_t batch, std::int64_t batches)>;
  Evaluation evaluate(const EvaluationTeller& told = nullptr);
  // Asked after each batch of an evaluation in fit(), on every rank: false, on every rank alike, gives the
  // evaluation up and has fit() return. Training then stands before that evaluation. Null: none is given up.
  void ask_in_evaluations(std::function<bool()> goes_on) { evaluation_goes_on_ = std::move(goes_on); }
  // Calls work when the network has the parameters that are evaluated, and no other work is under way: the
  // average, where one is kept. Then training has its own again. Between two steps.
  void with_evaluated_weights(const std::function<void()>& work);
  // Null: none is kept.
  WeightAverage* weight_average() { return average_ ? &*average_ : nullptr; }
  // Everything the next step depends on: the network's and the optimizer's state, where training stands
  // (steps, epoch, step of the epoch, the order's seed) and what the epoch adds up to so far. Waits for the
  // steps under way. A visitor that writes sets it all, and training goes on from there: bit for bit, with
  // the same options, data and ranks. Throws ConfigError for a state of another seed, DataError for a place
  // that no epoch has. Collective.
  void visit_state(StateVisitor& visitor);

  std::int64_t steps() const { return step_; }
  // Between two steps; null: nobody observes. Where steps are replayed there are no layers to look at.
  void observe_layers(LayerObserver* observer) { parts_.observer = observer; }
  bool replays_steps() const { return recordings_.records(); }
  // Between two steps, collective: waits for those under way, which are in the timeline then.
  void finish_steps();
  Device device() const { return parts_.network.device(); }
  // Of a GPU. Any thread, while this trains.
  DevicePlace device_place() const { return marks_.place(); }
  // With comm.codec = "auto": between two steps, which codec each bucket travels by from now on, in place of
  // what a trial would find. Collective.
  void choose_codecs(std::span<const int> by_bucket);
  // What samples per second of all ranks are held against: see measure_attainable().
  void set_attainable(std::optional<double> samples_per_second) { attainable_ = samples_per_second; }
  // Collective, behind the steps of an epoch, with their samples: what its line says of devices.
  using DeviceTeller = std::function<std::string(std::int64_t samples)>;
  void tell_devices(DeviceTeller teller) { device_teller_ = std::move(teller); }
  // Where others of this node see how training gets on, from now on; it outlives this. Null: nowhere.
  void show_on(ShownRank* shown) { shown_ = shown; }
  ShownRank* shown() const { return shown_; }
  // While it is held nothing is tried: for steps that are measured, or taken back.
  void hold_codecs(bool held) { codecs_held_ = held; }
  // On a ring, steps that each rank took of the epoch that was trained last; else empty.
  const std::vector<std::int64_t>& steps_by_rank() const { return steps_by_rank_; }
  // Epochs that are over.
  std::int64_t epochs() const { return epoch_; }
  // Whether the epoch is reported as it is, before another step, and evaluated where it is to be.
  bool epoch_ends_next() const { return epoch_ends_after(epoch_step_, step_); }
  // Whether an evaluation within the epoch (TrainerOptions::evaluate_every) comes before another step.
  bool evaluates_within() const { return evaluates_within(epoch_step_, step_); }
  // Whether train.steps ended the epoch early, and it was evaluated and reported as it was.
  bool reported_early() const { return reported_ && epoch_step_ > 0; }
  // Between two steps, on every rank alike: fit() finds nothing more to do.
  void end() { ended_ = true; }
  // Whether fit() finds nothing to do.
  bool done() const {
    return ended_ || epoch_ >= options_.epochs || (stopped() && (reported_ || epoch_step_ == 0));
  }
  // See StepClock; take_account() waits for the steps under way.
  StepAccount take_account();
  StepAccount take_host_account() { return clock_.take_host(); }
  OwnSeconds own_seconds() {
    return {.host = clock_.own_host_seconds(), .device = clock_.own_device_seconds()};
  }
  // Seconds for which the threads that compute had no core, their mean, since any moment; but for what
  // followed a wait for other ranks.
  double compute_without_core();
  // The micro-batches of a step without its exchange and update: `behind` finds gradients that are this
  // rank's own, the mean over one micro-batch times the loss scale. For who measures: the order of samples
  // goes on, and running statistics move. Before the first step anything; later not where a step ends within
  // the next. Collective only with synchronised batch norm.
  void rehearse(const std::function<void()>& behind = nullptr);
  // Whether all ranks stand at the same step between any two.
  bool in_lockstep() const { return end_->in_lockstep(); }
  // What this process has taken of cores so far. With one rank nothing of it is communication; nor is what
  // NCCL's own threads take.
  ProcessorAccount processor_account();

 private:
  // Of the mean over samples: of all ranks, or of this one, as its gradients stay its own.
  float gradient_scale() const;
  void enqueue_step();
  // exchange: of the last of a step, where its buckets leave.
  void micro_batch(std::int64_t micro, GradientListener* exchange);
  void learn_order();
  // What the host learns of the steps but for the last `lag`, when the device is done with them. The same on
  // every rank at the same point of the loop.
  void settle_but(std::int64_t lag);
  void settle(StepSlot slot);
  [[noreturn]] void stop_not_finite(const StepFailure& failure);
  void tell_skipped(const StepVerdict& verdict);
  // What NotFiniteSearch finds in this step, from 1, which is computed again. Not collective, but with
  // synchronised batch norm.
  std::string find_not_finite(std::int64_t step);
  // Returns what to say of it.
  std::string save_last_good(std::int64_t failed_step);  // from 1
  // Collective. False: no rank's parameters are finite.
  bool share_finite_state();
  void stand_at_last_good(std::int64_t failed_step, bool next_done);
  struct Standing {
    std::int64_t step = 0, epoch = 0, epoch_step = 0;
  };
  Standing standing_before(std::int64_t step) const;  // from 1
  // Nothing where the observer stops it.
  std::optional<EpochReport> train_epoch(Report& report, FitObserver* observer);
  std::optional<MoreRanks> more_ranks(const EpochReport& line, std::int64_t steps) const;
  // Collective, with several ranks. Of the epoch whose line this is.
  EpochCommunication communication(const EpochReport& line, double no_core_before);
  // Rank 0's, behind an epoch that ends with them: of the gradients that its last step took. Where they are
  // no more there, as what is late or averaged took their place, there are none.
  std::vector<Histogram> last_gradients();
  bool tells_histograms() const;
  // Rank 0's, where it is asked for.
  StepSeries::Place series_place();
  std::optional<StepSeries> begin_series();
  bool asks_for_norm() const;
  void tell_series(Report& report, StepSeries& series);
  // For whoever looks on: before the steps of an epoch or what is left of it, and behind each.
  void begin_window();
  void show_step(std::int64_t epoch_steps);
  void restart_window();
  bool window_is_over(const RankProgress& progress, std::int64_t now) const;
  void close_window(RankProgress& progress, std::int64_t now);
  // Of an evaluation within an epoch.
  struct Pause {
    std::int64_t evaluations = 0;
    double seconds = 0, metric_seconds = 0, without_core = 0;
    ProcessorAccount processor;
  };
  // Returns nothing if told() returned false, which it does on every rank alike.
  std::optional<Evaluation> evaluate_while(const std::function<bool(std::int64_t, std::int64_t)>& told);
  // In fit(). Nothing: it was given up.
  std::optional<Evaluation> evaluate_in(Report& report);
  // Collective. Of the epoch whose line this is, where it is to be evaluated.
  std::optional<Evaluation> evaluate_epoch(Report& report, EpochReport& line);
  // Collective. Adds to what the epoch's evaluations took so far.
  void pause_to_evaluate(Report& report, Pause& pause);
  // See RankCommunication::no_core; of all steps so far.
  double seconds_without_core_for_communication();
  // Before each step of an epoch: whether there is another.
  bool takes_step(std::int64_t steps);
  void stand_at(std::int64_t epoch_step);
  bool epoch_is_over() const { return epoch_step_ == parts_.train.steps_in_epoch(epoch_); }
  // True when a GPU takes moments of the buckets in the step that begins.
  bool observes_buckets() const;
  void begin_epoch();
  void begin_totals();
  void visit_place(StateVisitor& visitor);
  void visit_exchange(StateVisitor& visitor);
  void try_codecs(double step_seconds);
  void change_codecs(std::span<const int> by_bucket);
  void average_statistics();
  void swap_average();
  void warn_unless_finite(const LossTotals& all);
  void require_finite_state();
  std::int64_t skipped_on_all_ranks();
  bool stopped() const { return options_.max_steps > 0 && step_ >= options_.max_steps; }
  bool epoch_ends_after(std::int64_t epoch_step, std::int64_t step) const {
    return epoch_step == parts_.train.steps_in_epoch(epoch_) ||
           (options_.max_steps > 0 && step >= options_.max_steps);
  }
  bool evaluates_within(std::int64_t epoch_step, std::int64_t step) const {
    return options_.evaluate_every > 0 && epoch_step > 0 && step % options_.evaluate_every == 0 &&
           !epoch_ends_after(epoch_step, step);
  }

  Parts parts_;
  Schedule schedule_;
  TrainerOptions options_;
  Stream stream_;
  DeviceBatches train_;
  DeviceBatches test_;
  std::optional<MetricCounter> metrics_;  // where any are asked for
  StepResults results_;
  ExchangedRate exchanged_rate_;
  DeviceMarks marks_;
  // Of buckets, where there are other ranks or a timeline: without either nobody asks.
  std::optional<Ledger> ledger_;
  StepClock clock_;
  std::unique_ptr<CodecTrial> codec_trial_;  // with comm.codec = "auto", where there is a choice
  bool codecs_held_ = false;
  std::optional<double> attainable_;
  DeviceTeller device_teller_;  // null: nobody tells
  // Since the line of the series before: evaluations within the epoch, and what telling of that line took.
  double evaluation_seconds_ = 0, telling_seconds_ = 0;
  ShownRank* shown_ = nullptr;
  std::optional<StepSeries> window_;  // of what is shown
  std::int64_t window_begin_ns_ = 0;
  std::int64_t window_settled_ = 0;  // steps that were before it
  bool norm_wanted_ = false;  // of the next step's gradients; on a GPU every step tells it, as it is recorded
  double gradient_norm_ = 0;  // of the last step that was settled; NaN: not told
  float gradients_scale_ = 1;  // loss scale that its gradients had
  std::optional<WeightAverage> average_;
  StepRecordings recordings_;  // of what a step uses: communicators of gradients, and of layers
  std::unique_ptr<StepEnd> end_;
  // Steps that the host does not wait for when they are enqueued: on a CPU none, on a GPU the last one. Every
  // rank learns of a step at the same point of its loop.
  bool traces_;  // a rank has a timeline
  std::int64_t lag_;
  std::vector<std::int64_t> steps_by_rank_;  // see steps_by_rank()
  LossTotals totals_;                        // of this rank, since the epoch began, and of settled steps
  std::int64_t skipped_ = 0;                 // of them
  float loss_scale_;                         // after the last step that was settled
  // Where training stands: the next step is step_ of all, epoch_step_ of epoch_. On a ring that is what all
  // ranks together have come to, and where this one stands in the data is its own.
  std::int64_t step_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t epoch_step_ = 0;
  std::int64_t reported_ = 0;  // 1: with all that was trained of the epoch
  bool ended_ = false;
  std::function<bool()> evaluation_goes_on_;
  bool gave_up_ = false;             // the last evaluation
  FitObserver* observer_ = nullptr;  // of fit()
  std::int64_t bad_in_a_row_ = 0;    // settled steps that were skipped, and no smaller loss scale helps
  std::string began_;                // what find_not_finite() found
  StepPlace place_;                  // of the step that is being enqueued
  // Of the steps that this trainer enqueued:
  std::int64_t enqueued_ = 0;
  std::int64_t settled_ = 0;      // how many the host knows to be done
  std::int64_t epoch_began_ = 0;  // how many came before the epoch's first
};

}  // namespace lockstep
