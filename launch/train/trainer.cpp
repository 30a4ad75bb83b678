// SPDX-License-Identifier: Apache-2.0
#include "launch/train/trainer.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profiler_range.h"
#include "launch/train/watch/not_finite_search.h"
#include "launch/train/step_ends/apart.h"
#include "launch/train/step_ends/crossing.h"
#include "launch/train/step_ends/late.h"
#include "launch/train/step_ends/ring.h"
#include "launch/train/step_ends/synchronous.h"

namespace lockstep {
namespace {

std::optional<Ledger> make_ledger(const Trainer::Parts& parts, bool on_host) {
  if (parts.communicator.size() == 1 && parts.timeline == nullptr) return std::nullopt;
  std::optional<Ledger> ledger(std::in_place, parts.buckets.buckets().size(),
                               on_host ? &parts.communicator.log() : nullptr);
  if (!on_host) return ledger;
  for (Communicator* communicator : parts.buckets.exchange().communicators())
    ledger->read_also(communicator->log());
  return ledger;
}

// On a GPU, libraries allocate in the first two steps, and the next two are recorded.
std::unique_ptr<CodecTrial> make_codec_trial(const Trainer::Parts& parts, bool records,
                                             const CodecTrialOptions& options) {
  AutoExchange* exchange = parts.buckets.exchange().to_choose();
  if (exchange == nullptr) return nullptr;
  constexpr std::int64_t kUntilReplayed = 4;
  return std::make_unique<CodecTrial>(*exchange, parts.buckets.buckets(), parts.communicator.host(),
                                      parts.network.device(), records ? kUntilReplayed : 0, options);
}

std::optional<WeightAverage> make_average(Network& network, double decay) {
  std::optional<WeightAverage> average;
  if (decay > 0) average.emplace(network, decay);
  return average;
}

std::vector<Communicator*> communicators_of(const Trainer::Parts& parts) {
  std::vector<Communicator*> all{&parts.communicator};
  if (parts.across != nullptr) all.push_back(&parts.across->communicator());
  for (Communicator* each : parts.buckets.exchange().communicators()) all.push_back(each);
  return all;
}

// The only function that names every StepEnd; see step_ends/step_end.h.
std::unique_ptr<StepEnd> choose_step_end(const StepEndParts& parts, const TrainerOptions& options) {
  const bool ring = options.topology == Topology::ring, apart = options.average_every > 0;
  const bool late = parts.buckets.delayed(), crossing = options.cross_barrier;
  CHECK(ring + apart + late + crossing <= 1, "a step ends in one way");
  CHECK(parts.average == nullptr || !(ring || apart || crossing),
        "an average is of parameters that all ranks share and a whole step has updated");
  CHECK(options.clip_norm == 0 || ring + apart + late + crossing == 0,
        "a norm is of the mean of the step's own gradients, all of them");
  if (ring) return std::make_unique<RingEnd>(parts);
  if (apart) {
    return std::make_unique<ApartEnd>(
        parts, LocalSgdOptions{.every = options.average_every, .after = options.average_after});
  }
  if (late) return std::make_unique<LateEnd>(parts);
  if (crossing) return std::make_unique<CrossingEnd>(parts);
  return std::make_unique<SynchronousEnd>(parts);
}

// The same on every rank.
bool records_steps(const Trainer::Parts& parts, const StepEnd& end) {
  std::string_view reason;
  if (end.crosses()) {
    reason = "the exchange of one ends within the next";
  } else if (first_rank_where(parts.communicator.host(), parts.observer != nullptr) >= 0) {
    reason = "an observer of layers looks into them";
  }
  if (!reason.empty()) log::info("steps are enqueued one by one: {}", reason);
  return reason.empty();
}

}  // namespace

Trainer::Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options)
    : parts_(parts),
      schedule_(schedule),
      options_(options),
      stream_(parts.network.device(), StreamUse::compute),
      train_(parts.train, {.device = parts.network.device(), .micro_batches = options.accumulation}),
      test_(parts.test, {.device = parts.network.device()}),
      results_(parts.network.device(), options.accumulation),
      exchanged_rate_(parts.network.device(), schedule.base),
      marks_(stream_),
      ledger_(make_ledger(parts, stream_.runs_on_host())),
      clock_(stream_, options.accumulation, parts.buckets.buckets().size(), parts.timeline,
             ledger_ ? &*ledger_ : nullptr),
      average_(make_average(parts.network, options.ema_decay)),
      recordings_(stream_, communicators_of(parts)),
      end_(choose_step_end({.network = parts.network,
                            .buckets = parts.buckets,
                            .optimizer = parts.optimizer,
                            .communicator = parts.communicator,
                            .statistics = parts.step_statistics,
                            .stream = stream_,
                            .clock = clock_,
                            .results = results_,
                            .recordings = recordings_,
                            .last_micro_batch = options.accumulation - 1,
                            .clip_norm = options.clip_norm,
                            .average = weight_average()},
                           options)),
      traces_(first_rank_where(parts.communicator.host(), parts.timeline != nullptr) >= 0) {
  settled_.loss_scale = parts_.optimizer.read_control(stream_).loss_scale;
  CHECK(!end_->judges_alone() || parts.across == nullptr,
        "ranks that train apart ask each other for statistics");
  CHECK(options.clip_norm == 0 || parts.buckets.exchange().same_on_every_rank(),
        "each rank knows only a part of the gradients' norm");
  if (options_.max_skipped_steps > 0) {
    CHECK(!options_.cross_barrier, "a step that others are part of is not skipped");
    parts_.optimizer.judge_each_step();
  }
  if (options.metrics.any())
    metrics_.emplace(options.metrics, parts.network, parts.communicator.host(), stream_);
  if (metrics_ && !metrics_->any()) metrics_.reset();
  CHECK(options.evaluate_every == 0 || end_->in_lockstep(), "ranks meet behind an epoch alone");
  const bool may_record = options.record_steps && stream_.can_record();
  codec_trial_ = make_codec_trial(parts, may_record, options.codec_trial);
  recordings_.begin(may_record && records_steps(parts, *end_), end_->first_exchange());
  recordings_.restart(parts.buckets.exchange().warmup_steps());
}

// Collective. Finds, for example, imported running statistics that are not finite: training updates them but
// does not read them.
void Trainer::require_finite_state() {
  const std::string where = where_it_began(parts_.communicator.host(), not_finite_state(parts_.network));
  if (where.empty()) return;
  throw_agreed(Error(exit_code::failed,
                     fmt::format("the network is not finite before step {}{}; train from other weights",
                                 position_.step + 1, where)));
}

void Trainer::fit(std::span<TrainingObserver* const> observers) {
  require_finite_state();
  observers_ = observers;
  while (!done()) {
    std::optional<EpochRecord> record = train_epoch();
    if (!record) break;
    for (TrainingObserver* each : observers_) each->epoch_trained(*record);
    if (!evaluate_epoch(*record)) break;
    position_.reported = 1;
    if (epoch_is_over()) begin_epoch();
    for (TrainingObserver* each : observers_) each->epoch_over(*record);
  }
  observers_ = {};
}

std::optional<EpochRecord> Trainer::train_epoch() {
  EpochRun run = begin_run();
  const bool in_lockstep = end_->in_lockstep();
  const auto steps_over = [&] {
    settle_but(0);
    for (TrainingObserver* each : observers_) each->steps_over();
  };
  for (bool first = true;; first = false) {
    if (evaluates_within()) {
      steps_over();
      if (!pause_to_evaluate(run)) return std::nullopt;
    }
    if (!begin_next_step(run.end_step)) break;
    if (in_lockstep || first) {
      for (TrainingObserver* each : std::views::reverse(observers_)) each->before_step();
    }
    step();
    const StepRecord record{.epoch = position_.epoch + 1,
                            .epoch_step = position_.epoch_step,
                            .epoch_steps = run.end_step,
                            .step = position_.step,
                            .loss = settled_.losses.mean(),
                            .samples_per_second = samples_per_second(run)};
    for (TrainingObserver* each : observers_) each->step_done(record);
    if (!in_lockstep) {
      if (std::ranges::any_of(observers_, &TrainingObserver::wants_to_meet)) end_->give_up_epoch();
    } else if (!observers_go_on()) {
      steps_over();
      return std::nullopt;
    }
  }
  settle_but(0);
  if (!in_lockstep) {
    steps_by_rank_ = end_->end_epoch();
    const std::int64_t all = std::reduce(steps_by_rank_.begin(), steps_by_rank_.end());
    move_to(run.first_step + all / parts_.communicator.size());
  }
  steps_over();
  if (!in_lockstep && !observers_go_on()) return std::nullopt;
  return record_of(run);
}

bool Trainer::observers_go_on() { return std::ranges::all_of(observers_, &TrainingObserver::goes_on); }

bool Trainer::begin_next_step(std::int64_t end_step) {
  const std::int64_t before = position_.epoch_step, every = options_.norm_every;
  const std::optional<std::int64_t> next = end_->next_step(before, end_step);
  norm_wanted_ = false;
  if (!next) return false;
  move_to(*next);
  const std::int64_t after = position_.epoch_step + 1;
  norm_wanted_ = every > 0 && (after / every > before / every || after == end_step ||
                               evaluates_within(after, position_.step + 1));
  return true;
}

void Trainer::move_to(std::int64_t epoch_step) {
  position_.step += epoch_step - position_.epoch_step;
  position_.epoch_step = epoch_step;
}

void Trainer::step() {
  if (epoch_is_over()) begin_epoch();
  set_current_step(position_.step + 1);
  const ProfilerRange range("step", position_.step + 1);
  const std::int64_t begin_ns = now_ns();
  place_ = {.step = position_.step,
            .slot = StepSlot::of(enqueued_),
            .stops_behind = epoch_ends_after(position_.epoch_step + 1, position_.step + 1) ||
                            evaluates_within(position_.epoch_step + 1, position_.step + 1)};
  end_->begin_step(place_);
  marks_.begin(place_.slot, position_.step + 1);
  const bool observed = observes_buckets();
  clock_.begin(place_.slot, position_.step, observed);
  if (!end_->exchanges(place_)) clock_.without_exchange();
  train_.begin(stream_, place_.slot);
  clock_.has_data();
  results_.ask_for_norm(place_.slot, wants_norm());
  parts_.optimizer.set_learning_rate(place_.slot, schedule_.at(position_.step));
  exchanged_rate_.set(place_.slot, schedule_.at(position_.step));
  recordings_.run(end_->kind_of(position_.step), place_.slot, observed, [this] { enqueue_step(); });
  clock_.end();
  end_->end_step(place_);
  ++enqueued_;
  ++position_.step;
  ++position_.epoch_step;
  clock_.fetch([this] { train_.prefetch(StepSlot::of(enqueued_)); });
  clock_.wait_for_device();
  settle_but(lag());
  clock_.rest();
  if (end_->learns()) learn_order();
  if (codec_trial_ && !codecs_held_) try_codecs(seconds_between(begin_ns, now_ns()));
}

// Recording the times of a bucket adds three nodes to a recorded step and costs GPU time. So one replayed
// step in 16 records them, unless all steps are traced or codecs are compared. The first such step is the
// third, because the first two are never replayed. The same on every rank.
bool Trainer::observes_buckets() const {
  constexpr std::int64_t kEvery = 16, kFirst = 2;
  if (!recordings_.records() || traces_) return true;
  if (!ledger_) return false;
  return (codec_trial_ && !codecs_held_ && !codec_trial_->decided()) || enqueued_ % kEvery == kFirst;
}

// If steps of the previous epoch are under way, settle() resets the sums later.
void Trainer::begin_epoch() {
  ++position_.epoch;
  position_.epoch_step = 0;
  position_.reported = 0;
  settled_.epoch_begin = enqueued_;
  if (settled_.steps == enqueued_) begin_sums();
}

void Trainer::begin_sums() {
  settled_.losses = {};
  settled_.skipped = 0;
}

// Enqueues all work of a step. Full buckets leave while the last micro-batch's backward is still at earlier
// layers.
void Trainer::enqueue_step() {
  train_.rewind();
  end_->before_forward(place_);
  const std::int64_t last = options_.accumulation - 1;
  for (std::int64_t micro = 0; micro < last; ++micro) micro_batch(micro, nullptr);
  micro_batch(last, end_->buckets_leave(place_) ? &parts_.buckets : nullptr);
  marks_.behind_backward(stream_, place_.slot);
  end_->behind_backward(place_);
}

void Trainer::micro_batch(std::int64_t micro, GradientListener* exchange) {
  const Batch* batch = nullptr;
  clock_.time(Phase::data_wait, micro, [&] { batch = &train_.next(); });
  const Pass pass{.stream = stream_,
                  .mode = Mode::training,
                  .gradient_scale = gradient_scale(),
                  .loss_scale = parts_.optimizer.loss_scale(),
                  .gradients = parts_.buckets.write(micro),
                  .listener = exchange,
                  .gate = end_->gate(),
                  .observer = parts_.observer,
                  .across = parts_.across};
  clock_.time(Phase::forward, micro, [&] {
    parts_.network.forward(*batch, pass);
    parts_.network.copy_loss(stream_, results_.loss(place_.slot, micro));
    end_->behind_forward();
  });
  if (exchange != nullptr) {
    GradientUnit unit{.loss_scale = parts_.optimizer.loss_scale()};
    if (parts_.buckets.exchange().uses_learning_rate())
      unit.learning_rate = exchanged_rate_.enqueue(stream_, place_.slot);
    parts_.buckets.begin(stream_, clock_.buckets(), unit);
  }
  clock_.time(Phase::backward, micro, [&] {
    parts_.network.backward(pass);
    if (exchange != nullptr) return;
    parts_.buckets.behind_micro_batch(stream_, micro);
    if (parts_.step_statistics != nullptr) parts_.step_statistics->keep_micro_batch(stream_, micro);
  });
}

std::int64_t Trainer::lag() const { return stream_.runs_on_host() && !end_->crosses() ? 0 : 1; }

bool Trainer::wants_norm() const {
  const bool wanted = stream_.runs_on_host() ? norm_wanted_ : options_.norm_every > 0;
  return wanted && end_->has_norm();
}

float Trainer::gradient_scale() const {
  const std::int64_t all = parts_.train.global_batch();
  const bool shared = end_->kind_of(place_.step) == StepKind::synchronous;
  return 1.0f / static_cast<float>(shared ? all : all / parts_.communicator.size());
}

void Trainer::finish_steps() {
  settle_but(0);
  for (Communicator* each : recordings_.communicators()) each->stream().synchronize();
}

StepAccount Trainer::take_account() {
  settle_but(0);
  clock_.restart();  // work until the next step is not idle time of a step
  return clock_.take();
}

}  // namespace lockstep
