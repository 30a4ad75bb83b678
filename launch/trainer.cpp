// SPDX-License-Identifier: Apache-2.0
#include "launch/trainer.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profiler_range.h"
#include "launch/account/busy.h"
#include "launch/not_finite_search.h"
#include "launch/parameter_histograms.h"
#include "launch/rank_memory.h"
#include "launch/step_ends/apart.h"
#include "launch/step_ends/crossing.h"
#include "launch/step_ends/late.h"
#include "launch/step_ends/ring.h"
#include "launch/step_ends/synchronous.h"

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
      traces_(first_rank_where(parts.communicator.host(), parts.timeline != nullptr) >= 0),
      lag_(stream_.runs_on_host() && !end_->crosses() ? 0 : 1),
      loss_scale_(parts.optimizer.read_control(stream_).loss_scale) {
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
  throw_agreed(Error(
      exit_code::failed,
      fmt::format("the network is not finite before step {}{}; train from other weights", step_ + 1, where)));
}

void Trainer::fit(Report& report, FitObserver* observer) {
  require_finite_state();
  observer_ = observer;
  while (!done()) {
    std::optional<EpochReport> trained = train_epoch(report, observer);
    if (!trained) break;
    EpochReport& line = *trained;
    std::vector<Histogram> histograms = last_gradients();
    const std::optional<Evaluation> evaluation = evaluate_epoch(report, line);
    if (gave_up_) break;
    report.epoch(line);
    if (tells_histograms()) {
      with_evaluated_weights([&] {
        for (Histogram& each : weight_histograms(parts_.network, stream_))
          histograms.push_back(std::move(each));
      });
      report.histograms(step_, histograms);
    }
    reported_ = 1;
    if (epoch_is_over()) begin_epoch();
    if (observer != nullptr) observer->epoch_over(evaluation);
  }
  observer_ = nullptr;
}

std::optional<EpochReport> Trainer::train_epoch(Report& report, FitObserver* observer) {
  reported_ = 0;
  take_account();
  if (ledger_) ledger_->take();
  const std::int64_t begin = now_ns();
  const ProcessorAccount processor_before = processor_account();
  const double no_core_before = seconds_without_core_for_communication();
  const double without_core_before = compute_without_core();
  const std::int64_t settled_before = settled_;
  std::int64_t steps = parts_.train.steps_in_epoch(epoch_);
  if (options_.max_steps > 0) steps = std::min(steps, epoch_step_ + options_.max_steps - step_);
  const std::int64_t first_step = epoch_step_;
  end_->begin_epoch(first_step, steps);
  Pause pause;
  const auto samples_per_second = [&] {
    const std::int64_t taken = end_->in_lockstep() ? settled_ - settled_before : epoch_step_ - first_step;
    const auto samples = static_cast<double>(taken * parts_.train.global_batch());
    return samples / (seconds_between(begin, now_ns()) - pause.seconds);
  };
  std::optional<StepSeries> series = begin_series();
  begin_window();
  const auto tell_rest = [&] {
    if (series && series->open(epoch_step_)) tell_series(report, *series);
  };
  for (;;) {
    if (evaluates_within()) {
      settle_but(0);  // so that the line includes all earlier steps
      tell_rest();
      pause_to_evaluate(report, pause);
      if (gave_up_) return std::nullopt;
      if (observer != nullptr) observer->evaluated_within();
      series = begin_series();
      begin_window();
    }
    if (!takes_step(steps)) break;
    norm_wanted_ = series && (series->due(epoch_step_ + 1) || epoch_step_ + 1 == steps ||
                              evaluates_within(epoch_step_ + 1, step_ + 1));
    step();
    show_step(steps);
    if (series && series->due(epoch_step_)) tell_series(report, *series);
    report.step({.epoch = epoch_ + 1,
                 .step = epoch_step_,
                 .steps = steps,
                 .steps_done = step_,
                 .loss = totals_.mean(),
                 .samples_per_second = samples_per_second()});
    if (observer == nullptr) continue;
    if (!end_->in_lockstep()) {
      if (observer->wants_to_meet()) end_->give_up_epoch();
    } else if (!observer->goes_on()) {
      settle_but(0);
      tell_rest();
      return std::nullopt;
    }
  }
  settle_but(0);
  norm_wanted_ = false;
  if (!end_->in_lockstep()) {
    steps_by_rank_ = end_->end_epoch();
    const std::int64_t all = std::reduce(steps_by_rank_.begin(), steps_by_rank_.end());
    stand_at(first_step + all / parts_.communicator.size());
  }
  tell_rest();
  if (!end_->in_lockstep() && observer != nullptr && !observer->goes_on()) return std::nullopt;
  EpochReport line{.epoch = epoch_ + 1, .steps = step_, .samples_per_second = samples_per_second()};
  line.learning_rate = schedule_.at(step_ - 1);
  line.train_seconds = seconds_between(begin, now_ns()) - pause.seconds;
  line.evaluations_within = pause.evaluations;
  line.evaluation_seconds = line.within_seconds = pause.seconds;
  line.metrics_seconds = pause.metric_seconds;
  line.account = take_account();
  double& rest = line.account[Phase::rest];
  rest = std::max(0.0, rest - pause.seconds);
  const double without_core = compute_without_core() - without_core_before - pause.without_core;
  line.busy_by_rank = gather_values(parts_.communicator.host(), busy_share(line.account, without_core));
  line.resident_bytes_by_rank = gather_values(parts_.communicator.host(), resident_bytes());
  line.device_memory = device_memory_use(parts_.network.device());
  if (device_teller_) line.device = device_teller_((epoch_step_ - first_step) * parts_.train.global_batch());
  if (attainable_) line.peak = line.samples_per_second / *attainable_;
  line.processor = processor_account() - processor_before - pause.processor;
  line.skipped_steps = skipped_on_all_ranks();
  line.loss_scale = loss_scale_;
  line.steps_by_rank = steps_by_rank_;
  line.train_loss = over_ranks(parts_.communicator.host(), totals_).mean();
  if (parts_.communicator.size() > 1 && ledger_->has_steps())
    line.communication = communication(line, no_core_before);
  line.more_ranks = more_ranks(line, epoch_step_ - first_step);
  return line;
}

bool Trainer::takes_step(std::int64_t steps) {
  const std::optional<std::int64_t> next = end_->next_step(epoch_step_, steps);
  if (next) stand_at(*next);
  return next.has_value();
}

void Trainer::stand_at(std::int64_t epoch_step) {
  step_ += epoch_step - epoch_step_;
  epoch_step_ = epoch_step;
}

void Trainer::step() {
  if (epoch_is_over()) begin_epoch();
  set_current_step(step_ + 1);
  const ProfilerRange range("step", step_ + 1);
  const std::int64_t begin_ns = now_ns();
  place_ = {.step = step_,
            .slot = StepSlot::of(enqueued_),
            .stops_behind =
                epoch_ends_after(epoch_step_ + 1, step_ + 1) || evaluates_within(epoch_step_ + 1, step_ + 1)};
  end_->begin_step(place_);
  marks_.begin(place_.slot, step_ + 1);
  const bool observed = observes_buckets();
  clock_.begin(place_.slot, step_, observed);
  if (!end_->exchanges(place_)) clock_.without_exchange();
  train_.begin(stream_, place_.slot);
  clock_.has_data();
  results_.ask_for_norm(place_.slot, asks_for_norm());
  parts_.optimizer.set_learning_rate(place_.slot, schedule_.at(step_));
  exchanged_rate_.set(place_.slot, schedule_.at(step_));
  recordings_.run(end_->kind_of(step_), place_.slot, observed, [this] { enqueue_step(); });
  clock_.end();
  end_->end_step(place_);
  ++enqueued_;
  ++step_;
  ++epoch_step_;
  clock_.fetch([this] { train_.prefetch(StepSlot::of(enqueued_)); });
  clock_.wait_for_device();
  settle_but(lag_);
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
  ++epoch_;
  epoch_step_ = 0;
  reported_ = 0;
  epoch_began_ = enqueued_;
  if (settled_ == enqueued_) begin_totals();
}

void Trainer::begin_totals() {
  totals_ = {};
  skipped_ = 0;
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
