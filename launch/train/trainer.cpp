// SPDX-License-Identifier: Apache-2.0
#include "launch/train/trainer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profiler_range.h"
#include "launch/train/compatibility.h"
#include "launch/train/step/shared_steps.h"
#include "launch/train/step_ends/apart.h"
#include "launch/train/step_ends/crossing.h"
#include "launch/train/step_ends/late.h"
#include "launch/train/step_ends/ring.h"
#include "launch/train/step_ends/sharded.h"
#include "launch/train/step_ends/synchronous.h"
#include "launch/train/watch/not_finite_search.h"

namespace lockstep {
namespace {

// Fails a CHECK if features of the training exclude each other, or if parts and options do not fit.
const TrainerOptions& checked(const TrainerOptions& options, const Trainer::Parts& parts) {
  const bool codec_adds_momentum =
      std::ranges::any_of(parts.network.parameters(), &Parameter::gradient_has_momentum);
  const std::map<Feature, std::pair<std::string_view, bool>> features = {
      {Feature::reproducible, {"step statistics", parts.step_statistics != nullptr}},
      {Feature::sync_batch_norm, {"synchronised batch norm", parts.across != nullptr}},
      {Feature::clip_norm, {"clip_norm", options.clip_norm > 0}},
      {Feature::ema_decay, {"ema_decay", options.ema_decay > 0}},
      {Feature::exact_tail, {"Tail::exact", parts.train.options().tail == Tail::exact}},
      {Feature::apart,
       {"average_every or a ring", options.average_every > 0 || options.topology == Topology::ring}},
      {Feature::staleness, {"delayed buckets", parts.buckets.delayed()}},
      {Feature::average_every, {"average_every", options.average_every > 0}},
      {Feature::ring, {"a ring", options.topology == Topology::ring}},
      {Feature::cross_barrier, {"cross_barrier", options.cross_barrier}},
      {Feature::sharded, {"sharded buckets", parts.buckets.sharded()}},
      {Feature::momentum_codec, {"a codec that adds momentum", codec_adds_momentum}},
      {Feature::max_skipped_steps, {"max_skipped_steps", options.max_skipped_steps > 0}},
      {Feature::dynamic_loss_scale, {"a dynamic loss scale", parts.optimizer.loss_scale_options().dynamic()}},
      {Feature::evaluations_within, {"evaluate_every", options.evaluate_every > 0}},
      {Feature::gpu, {"a GPU", !is_host_memory(parts.network.device())}}};
  for (const Exclusion& row : exclusions()) {
    const auto feature = features.find(row.feature), other = features.find(row.other);
    if (feature == features.end() || other == features.end()) continue;
    CHECK(!feature->second.second || !other->second.second, "{} is allowed only without {}, because {}",
          feature->second.first, other->second.first, row.reason);
  }
  CHECK(parts.optimizer.shares_elements() == parts.buckets.sharded(),
        "the optimizer updates {}, the buckets hold the sums of {}: make it with applied_gradients() and "
        "completion()",
        parts.optimizer.shares_elements() ? "a share" : "all parameters",
        parts.buckets.sharded() ? "a share" : "all gradients");
  CHECK(options.clip_norm == 0 || parts.buckets.exchange().same_on_every_rank(),
        "clip_norm requires an exchange with the same result on every rank");
  CHECK(parts.train.options().accumulation == options.accumulation,
        "TrainerOptions::accumulation is {}, LoaderOptions::accumulation of the training loader is {}: set "
        "both to the same number",
        options.accumulation, parts.train.options().accumulation);
  // The default of 1 sums micro-batches in the type of the gradients.
  CHECK(parts.buckets.micro_batches() == 1 || parts.buckets.micro_batches() == options.accumulation,
        "TrainerOptions::accumulation is {}, BucketOptions::micro_batches is {}: set both to the same number",
        options.accumulation, parts.buckets.micro_batches());
  CHECK(
      parts.step_statistics == nullptr || parts.step_statistics->micro_batches() == options.accumulation,
      "TrainerOptions::accumulation is {}, the micro-batches of StepStatistics are {}: set both to the same "
      "number",
      options.accumulation, parts.step_statistics->micro_batches());
  CHECK(parts.test.options().tail == Tail::pad && parts.test.options().accumulation == 1,
        "the test loader does not return each test sample once: make it with Tail::pad and accumulation 1");
  CHECK(parts.test.options().augmentation == nullptr,
        "the test loader changes its images: make it without LoaderOptions::augmentation");
  // A rank may train alone on one of several shards; ranks that share a shard would sum its gradients twice.
  for (const BatchLoader* loader : {&parts.train, &parts.test}) {
    const std::int64_t shards =
        loader->global_batch() / (loader->options().batch * loader->options().accumulation);
    CHECK(shards >= parts.communicator.size(),
          "a loader divides the samples among {} ranks, the training has {}: make it with the Shard of this "
          "rank",
          shards, parts.communicator.size());
  }
  return options;
}

std::optional<Ledger> make_ledger(const Trainer::Parts& parts, bool on_host) {
  if (parts.communicator.size() == 1 && parts.timeline == nullptr) return std::nullopt;
  std::optional<Ledger> ledger(std::in_place, parts.buckets.buckets().size(),
                               on_host ? &parts.communicator.log() : nullptr,
                               !on_host && parts.communicator.size() > 1);
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
  if (options.topology == Topology::ring) return std::make_unique<RingEnd>(parts);
  if (options.average_every > 0) {
    return std::make_unique<ApartEnd>(
        parts, LocalSgdOptions{.every = options.average_every, .after = options.average_after});
  }
  if (parts.buckets.delayed()) return std::make_unique<LateEnd>(parts);
  if (options.cross_barrier) return std::make_unique<CrossingEnd>(parts);
  if (parts.buckets.sharded()) return std::make_unique<ShardedEnd>(parts);
  return std::make_unique<SynchronousEnd>(parts);
}

// The same on every rank.
bool records_steps(const Trainer::Parts& parts, const StepEnd& end) {
  std::string_view reason;
  if (end.traits().crosses) {
    reason = "the exchange of a step ends within the next step";
  } else if (first_rank_where(parts.communicator.host(), parts.observer != nullptr) >= 0) {
    reason = "a layer observer is called within a step";
  }
  if (!reason.empty()) log::info("steps are enqueued one by one: {}", reason);
  return reason.empty();
}

}  // namespace

Trainer::Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options)
    : parts_(parts),
      schedule_(schedule),
      options_(checked(options, parts)),
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
  if (!parts_.train.at_beginning()) train_.seek(0, 0);
  settled_.loss_scale = parts_.optimizer.read_control(stream_).loss_scale;
  if (options_.max_skipped_steps > 0) parts_.optimizer.judge_each_step();
  if (options.metrics.any()) {
    const std::int64_t counted = parts.test.dataset().size() * parts.network.rows_per_sample();
    if (counted > std::numeric_limits<std::int32_t>::max())
      throw_agreed(ConfigError(fmt::format(
          "run.metrics: the test set has {} pixels, but at most 2^31 - 1 can be counted; use fewer "
          "or smaller test images, or run.metrics = \"none\"",
          counted)));
    metrics_.emplace(options.metrics, parts.network, parts.communicator.host(), stream_);
  }
  if (metrics_ && !metrics_->any()) metrics_.reset();
  const bool may_record = options.record_steps && stream_.can_record();
  codec_trial_ = make_codec_trial(parts, may_record, options.codec_trial);
  recordings_.begin(may_record && records_steps(parts, *end_), options.enqueue_every,
                    end_->traits().first_exchange);
  recordings_.restart(parts.buckets.exchange().warmup_steps());
}

// Collective. Finds, for example, imported running statistics that are not finite: training updates them but
// does not read them.
void Trainer::require_finite_state() {
  const std::string where = describe_origin(parts_.communicator.host(), not_finite_state(parts_.network));
  if (where.empty()) return;
  throw_agreed(Error(exit_code::failed,
                     fmt::format("the network has values that are not finite before step {}{}; start from "
                                 "other weights (--init) or from an earlier checkpoint (--resume)",
                                 position_.step + 1, where)));
}

void Trainer::fit(std::span<TrainingObserver* const> observers) {
  require_finite_state();
  struct Reset {  // also after an exception: the list may live no longer
    ~Reset() { observers = {}; }
    std::span<TrainingObserver* const>& observers;
  } const reset{observers_};
  observers_ = observers;
  try {
    train_epochs();
  } catch (const Error& error) {
    // All ranks throw it, so an exchange that the next step would end has all its peers. Without its end the
    // buckets abandon the job, and MPI may end the rank that prints the error.
    if (error.agreed()) end_->finish();
    throw;
  }
}

void Trainer::train_epochs() {
  while (!done()) {
    std::optional<EpochRecord> record = train_epoch();
    if (!record) break;
    for (TrainingObserver* each : observers_) each->epoch_trained(*record);
    if (!evaluate_epoch(*record)) break;
    position_.reported = 1;
    if (epoch_is_over()) begin_epoch();
    for (TrainingObserver* each : observers_) each->epoch_over(*record);
  }
}

std::optional<EpochRecord> Trainer::train_epoch() {
  EpochRun run = begin_run();
  SharedSteps* const shared = end_->shared_steps();
  const auto steps_over = [&] {
    settle_all_but(0);
    for (TrainingObserver* each : observers_) each->steps_over();
  };
  for (bool first = true;; first = false) {
    if (evaluates_within()) {
      steps_over();
      if (!pause_to_evaluate(run)) return std::nullopt;
    }
    if (!begin_next_step(run.end_step)) break;
    if (shared == nullptr || first) {
      for (auto each = observers_.rbegin(); each != observers_.rend(); ++each) (*each)->before_step();
    }
    step();
    const StepRecord record{.epoch = position_.epoch + 1,
                            .epoch_step = position_.epoch_step,
                            .epoch_steps = run.end_step,
                            .step = position_.step,
                            .loss = settled_.losses.mean(),
                            .samples_per_second = samples_per_second(run)};
    for (TrainingObserver* each : observers_) each->step_done(record);
    if (shared != nullptr) {
      if (std::ranges::any_of(observers_, &TrainingObserver::wants_to_meet)) shared->give_up();
    } else if (!observers_continue()) {
      steps_over();
      return std::nullopt;
    }
  }
  if (shared != nullptr) {
    steps_by_rank_ = shared->end_epoch();
    const std::int64_t all = std::reduce(steps_by_rank_.begin(), steps_by_rank_.end());
    const std::int64_t ranks = parts_.communicator.size();
    move_to(run.first_step + (all + ranks - 1) / ranks);  // no rank has reported a later step
  }
  steps_over();
  if (shared != nullptr && !observers_continue()) return std::nullopt;
  return record_of(run);
}

bool Trainer::observers_continue() { return std::ranges::all_of(observers_, &TrainingObserver::goes_on); }

bool Trainer::begin_next_step(std::int64_t end_step) {
  const std::int64_t before = position_.epoch_step, every = options_.norm_every;
  norm_wanted_ = false;
  if (SharedSteps* const shared = end_->shared_steps()) {
    const std::optional<std::int64_t> next = shared->take();
    if (!next) return false;
    move_to(*next);
  } else if (before >= end_step) {
    return false;
  }
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
            .slot = StepSlot::of(position_.enqueued),
            .before_pause = epoch_ends_after(position_.epoch_step + 1, position_.step + 1) ||
                            evaluates_within(position_.epoch_step + 1, position_.step + 1),
            .exchange_changed = place_.exchange_changed};
  plan_ = end_->begin_step(place_);
  place_.exchange_changed = false;
  marks_.begin(place_.slot, position_.step + 1);
  const StepDetail detail = this->detail();
  clock_.begin(place_.slot, position_.step, detail != StepDetail::phases);
  if (!plan_.exchanges) clock_.without_exchange();
  train_.begin(stream_, place_.slot);
  clock_.has_data();
  results_.ask_for_norm(place_.slot, wants_norm());
  parts_.optimizer.set_learning_rate(place_.slot, next_learning_rate());
  exchanged_rate_.set(place_.slot, next_learning_rate());
  recordings_.run(end_->kind_of(position_.step), place_.slot, detail, [this] { enqueue_step(); });
  clock_.end();
  end_->end_step(place_);
  ++position_.enqueued;
  ++position_.step;
  ++position_.epoch_step;
  clock_.fetch([this] { train_.prefetch(StepSlot::of(position_.enqueued)); });
  clock_.wait_for_device();
  settle_all_but(lag());
  clock_.rest();
  if (plan_.learns) learn_order();
  if (codec_trial_ && !codecs_held_) try_codecs(seconds_between(begin_ns, now_ns()));
}

// Recording the times of a bucket adds three nodes to a recorded step and costs GPU time. So one replayed
// step in 16 records them, unless all steps are traced or codecs are compared. The first such step is the
// third, because the first two are never replayed. Where only some steps exchange, all are recorded with
// their times: samples could fall on one kind of step only. The same on every rank.
StepDetail Trainer::detail() const {
  constexpr std::int64_t kEvery = 16, kFirst = 2;
  if (clock_.observes_layers()) return StepDetail::layers;
  if (!recordings_.records() || traces_) return StepDetail::buckets;
  if (!ledger_) return StepDetail::phases;
  const bool observed = end_->kind_of(position_.step) != StepKind::synchronous ||
                        (codec_trial_ && !codecs_held_ && !codec_trial_->decided()) ||
                        position_.enqueued % kEvery == kFirst;
  return observed ? StepDetail::buckets : StepDetail::phases;
}

void Trainer::observe_layers(LayerObserver* observer) {
  const std::size_t layer_runs = parts_.network.nodes().size() * kDirections.size();
  if (stream_.runs_on_host())
    parts_.observer = observer;
  else
    clock_.observe_layers(observer, layer_runs * static_cast<std::size_t>(options_.accumulation));
}

// If steps of the previous epoch are under way, settle() resets the sums later.
void Trainer::begin_epoch() {
  ++position_.epoch;
  position_.epoch_step = 0;
  position_.reported = 0;
  settled_.epoch_begin = position_.enqueued;
  if (settled_.steps == position_.enqueued) begin_sums();
}

void Trainer::begin_sums() {
  settled_.losses = {};
  settled_.skipped = 0;
}

// Enqueues all work of a step. Full buckets are sent while the last micro-batch's backward is still at
// earlier layers.
void Trainer::enqueue_step() {
  train_.rewind();
  layer_marker_ = clock_.enqueues_layers();
  end_->before_forward(place_);
  const std::int64_t last = options_.accumulation - 1;
  for (std::int64_t micro = 0; micro < last; ++micro) micro_batch(micro, nullptr);
  micro_batch(last, plan_.sends_during_backward ? &parts_.buckets : nullptr);
  layer_marker_ = nullptr;
  marks_.after_backward(stream_, place_.slot);
  end_->after_backward(place_);
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
                  .gate = micro == 0 ? plan_.gate : nullptr,
                  .observer = parts_.observer,
                  .marker = layer_marker_,
                  .across = parts_.across};
  clock_.time(Phase::forward, micro, [&] {
    parts_.network.forward(*batch, pass);
    parts_.network.copy_loss(stream_, results_.loss(place_.slot, micro));
    end_->finish();
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

std::int64_t Trainer::lag() const { return stream_.runs_on_host() && !end_->traits().crosses ? 0 : 1; }

bool Trainer::wants_norm() const {
  const bool wanted = stream_.runs_on_host() ? norm_wanted_ : options_.norm_every > 0;
  return wanted && plan_.has_norm;
}

float Trainer::gradient_scale() const {
  const LoaderOptions& loader = parts_.train.options();
  const bool shared = end_->kind_of(place_.step) == StepKind::synchronous;
  const std::int64_t ranks = shared ? parts_.communicator.size() : 1;
  return 1.0f / static_cast<float>(ranks * loader.batch * loader.accumulation);
}

void Trainer::finish_steps() {
  settle_all_but(0);
  for (Communicator* each : recordings_.communicators()) each->stream().synchronize();
}

StepAccount Trainer::take_account() {
  settle_all_but(0);
  clock_.restart();  // work until the next step is not idle time of a step
  return clock_.take();
}

}  // namespace lockstep
