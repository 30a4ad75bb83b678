// SPDX-License-Identifier: Apache-2.0
#include "launch/trainer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/processor_time.h"

namespace lockstep {
namespace {

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

std::optional<Ledger> make_ledger(const Trainer::Parts& parts, bool on_host) {
  if (parts.communicator.size() == 1 && parts.timeline == nullptr) return std::nullopt;
  std::optional<Ledger> ledger(std::in_place, parts.buckets.buckets().size(),
                               on_host ? &parts.communicator.log() : nullptr);
  if (!on_host) return ledger;
  for (Communicator* communicator : parts.buckets.exchange().communicators())
    ledger->read_also(communicator->log());
  return ledger;
}

// On a GPU the first steps are those that libraries allocate in, and those that are recorded.
std::unique_ptr<CodecTrial> make_codec_trial(const Trainer::Parts& parts, bool records,
                                             const CodecTrialOptions& options) {
  AutoExchange* exchange = parts.buckets.exchange().to_choose();
  if (exchange == nullptr) return nullptr;
  constexpr std::int64_t kUntilReplayed = 4;
  return std::make_unique<CodecTrial>(*exchange, parts.buckets.buckets(), parts.communicator.host(),
                                      parts.network.device(), records ? kUntilReplayed : 0, options);
}

}  // namespace

Trainer::Trainer(const Parts& parts, const Schedule& schedule, const TrainerOptions& options)
    : parts_(parts),
      communicators_{&parts.communicator},
      schedule_(schedule),
      options_(options),
      stream_(parts.network.device(), StreamUse::compute),
      train_(parts.train, {.device = parts.network.device(), .micro_batches = options.accumulation}),
      test_(parts.test, {.device = parts.network.device()}),
      results_(parts.network.device(), options.accumulation),
      lag_(stream_.runs_on_host() ? 0 : 1),
      ledger_(make_ledger(parts, stream_.runs_on_host())),
      clock_(stream_, options.accumulation, parts.buckets.buckets().size(), parts.timeline,
             ledger_ ? &*ledger_ : nullptr),
      records_(options.record_steps && stream_.can_record()),
      first_recorded_(std::max<std::int64_t>(2, parts.buckets.exchange().warmup_steps())),
      loss_scale_(parts.optimizer.read_control(stream_).loss_scale) {
  codec_trial_ = make_codec_trial(parts, records_, options.codec_trial);
  if (parts_.across != nullptr) communicators_.push_back(&parts_.across->communicator());
  for (Communicator* each : parts_.buckets.exchange().communicators()) communicators_.push_back(each);
  const bool ring = options.topology == Topology::ring;
  if (options.average_every > 0 || ring) {
    CHECK(parts.step_statistics == nullptr && parts.across == nullptr,
          "ranks that train apart ask each other for statistics");
    local_.emplace(parts.network, parts.buckets, parts.communicator,
                   ring ? LocalSgdOptions{.every = LocalSgdOptions::kNever}
                        : LocalSgdOptions{.every = options.average_every, .after = options.average_after});
    parts_.optimizer.set_state_scope(StateScope::per_rank);
  }
  if (ring) gossip_.emplace(parts.network, parts.communicator);
  if (parts.buckets.delayed()) {
    CHECK(!local_ && parts.step_statistics == nullptr,
          "gradients that are late, and ranks that do not share them");
    delayed_.emplace(parts.network, parts.buckets, parts.optimizer, parts.communicator.size());
    ++first_recorded_;  // the first step exchanges nothing
  }
  if (options.cross_barrier) {
    CHECK(!local_ && !delayed_ && parts.step_statistics == nullptr,
          "gradients that nobody exchanges in time cross no step");
    barrier_.emplace(parts.network, parts.buckets, parts.optimizer, clock_, results_);
    lag_ = 1;
    if (records_) log::info("steps are enqueued one by one: the exchange of one ends within the next");
    records_ = false;
  }
  if (!records_) return;
  records_ = first_rank_where(parts.communicator.host(), parts.observer != nullptr) < 0;
  if (!records_) log::info("steps are enqueued one by one: an observer of layers looks into them");
}

void Trainer::fit(Report& report, FitObserver* observer) {
  while (!done()) {
    std::optional<EpochReport> trained = train_epoch(report, observer);
    if (!trained) return;
    EpochReport& line = *trained;
    const std::int64_t begin = now_ns();
    const Evaluation evaluation = evaluate();
    line.test_loss = evaluation.loss;
    line.test_accuracy = evaluation.accuracy;
    line.evaluation_seconds = seconds_between(begin, now_ns());
    report.epoch(line);
    reported_ = 1;
    if (epoch_is_over()) begin_epoch();
    if (observer != nullptr) observer->evaluated(evaluation);
  }
}

std::optional<EpochReport> Trainer::train_epoch(Report& report, FitObserver* observer) {
  reported_ = 0;
  take_account();
  if (ledger_) ledger_->take();
  const std::int64_t begin = now_ns();
  const ProcessorAccount processor_before = processor_account();
  const double no_core_before = seconds_without_core_for_communication();
  const std::int64_t settled_before = settled_;
  std::int64_t steps = parts_.train.steps_in_epoch(epoch_);
  if (options_.max_steps > 0) steps = std::min(steps, epoch_step_ + options_.max_steps - step_);
  const std::int64_t first_step = epoch_step_;
  if (gossip_) gossip_->begin_epoch(first_step, steps - first_step);
  const auto samples_per_second = [&] {
    const std::int64_t taken = gossip_ ? epoch_step_ - first_step : settled_ - settled_before;
    const auto samples = static_cast<double>(taken * parts_.train.global_batch());
    return samples / seconds_between(begin, now_ns());
  };
  while (takes_step(steps)) {
    step();
    report.step({.epoch = epoch_ + 1,
                 .step = epoch_step_,
                 .steps = steps,
                 .steps_done = step_,
                 .loss = totals_.mean(),
                 .samples_per_second = samples_per_second()});
    if (observer != nullptr && !gossip_ && !observer->goes_on()) {
      if (barrier_) settle_but(0);
      return std::nullopt;
    }
  }
  settle_but(0);
  if (gossip_) {
    end_gossip(steps);
    if (observer != nullptr && !observer->goes_on()) return std::nullopt;
  }
  EpochReport line{.epoch = epoch_ + 1, .steps = step_, .samples_per_second = samples_per_second()};
  line.learning_rate = schedule_.at(step_ - 1);
  line.train_seconds = seconds_between(begin, now_ns());
  line.account = take_account();
  line.processor = processor_account() - processor_before;
  line.skipped_steps = skipped_on_all_ranks();
  line.loss_scale = loss_scale_;
  line.steps_by_rank = steps_by_rank_;
  line.train_loss = over_ranks(parts_.communicator.host(), totals_).mean();
  if (parts_.communicator.size() > 1) line.communication = communication(line, no_core_before);
  return line;
}

// The number of the step is that of all ranks' steps before it, divided by the ranks: the schedule follows
// what has been learned from, and not who is fast.
bool Trainer::takes_step(std::int64_t steps) {
  if (!gossip_) return epoch_step_ < steps;
  if (!gossip_->take_step()) return false;
  const std::int64_t further = gossip_->place() - epoch_step_;
  step_ += further;
  epoch_step_ += further;
  return true;
}

void Trainer::end_gossip(std::int64_t steps) {
  parts_.communicator.barrier();
  parts_.communicator.stream().synchronize();
  step_ += steps - epoch_step_;
  epoch_step_ = steps;
  steps_by_rank_ = gossip_->take_steps_of_ranks();
}

EpochCommunication Trainer::communication(const EpochReport& line, double no_core_before) {
  LedgerSums sums = ledger_->take();
  AdviceContext context = options_.advice;
  context.step_seconds = line.train_seconds / static_cast<double>(std::max<std::int64_t>(1, sums.steps));
  context.samples_per_second = line.samples_per_second;
  context.accumulation = options_.accumulation;
  context.forward_seconds =
      line.account[Phase::forward] /
      static_cast<double>(std::max<std::int64_t>(1, sums.steps) * options_.accumulation);
  std::vector<double> bytes;
  for (const Bucket& bucket : parts_.buckets.buckets()) bytes.push_back(static_cast<double>(bucket.bytes()));
  EpochCommunication epoch =
      gather_communication(parts_.communicator.host(), std::move(sums), std::move(bytes),
                           seconds_without_core_for_communication() - no_core_before);
  if (!gossip_) epoch.advice = advise(epoch, context);  // there is no exchange to be faster
  return epoch;
}

double Trainer::seconds_without_core_for_communication() {
  Stream& stream = parts_.communicator.stream();
  if (!stream.runs_on_host() || !ledger_) return 0;
  double seconds = 0;
  stream.enqueue([&seconds] { seconds = seconds_without_core(); });
  stream.synchronize();
  return seconds;
}

void Trainer::step() {
  if (epoch_is_over()) begin_epoch();
  set_current_step(step_ + 1);
  const std::int64_t begin_ns = now_ns();
  slot_ = StepSlot::of(enqueued_);
  if (local_) local_->begin_step(stream_, step_);
  clock_.begin(slot_, step_);
  if (kind() == StepKind::local || (delayed_ && !delayed_->under_way())) clock_.without_exchange();
  train_.begin(stream_, slot_);
  clock_.has_data();
  parts_.optimizer.set_learning_rate(slot_, schedule_.at(step_));
  run_step();
  if (delayed_) delayed_->end_step();
  clock_.end();
  if (!barrier_ || barrier_->gate() == nullptr) results_.enqueued(stream_, slot_);
  ++enqueued_of_kind_[static_cast<std::size_t>(kind())];
  ++enqueued_;
  ++step_;
  ++epoch_step_;
  clock_.fetch([this] { train_.prefetch(StepSlot::of(enqueued_)); });
  clock_.wait_for_device();
  settle_but(lag_);
  clock_.rest();
  if (barrier_ && barrier_->learns()) learn_order();
  if (codec_trial_ && !codecs_held_) try_codecs(seconds_between(begin_ns, now_ns()));
}

// Steps of the epoch before may be under way: settle() then begins the sums.
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

// The first two steps of a kind are enqueued one by one: libraries allocate when they run for the first time.
// So are those that exchange gradients in another way than all that follow.
void Trainer::run_step() {
  const auto kind = static_cast<std::size_t>(this->kind());
  RecordedStep& recorded = recordings_[kind][slot_.index];
  if (records_ && enqueued_of_kind_[kind] >= first_recorded_ && recorded.work.empty())
    recorded = record_step();
  if (recorded.work.empty()) return enqueue_step();
  stream_.replay(recorded.work);
  for (std::size_t i = 0; i < communicators_.size(); ++i)
    communicators_[i]->replayed(recorded.collectives[i], stream_);
  check_replayed_calls();
}

// Empty where it cannot be recorded on every rank: NCCL wants a collective replayed by all or by none, and a
// step is no faster than its slowest rank.
Trainer::RecordedStep Trainer::record_step() {
  std::string reason;
  RecordedStep step{.work = stream_.record_work([this] { enqueue_step(); }, reason), .collectives = {}};
  for (Communicator* communicator : communicators_) step.collectives.push_back(communicator->take_recorded());
  Communicator& host = parts_.communicator.host();
  const int first_without = first_rank_where(host, step.work.empty());
  if (first_without < 0) {
    if (enqueued_of_kind_[static_cast<std::size_t>(kind())] == first_recorded_) {
      constexpr std::string_view kNames[] = {"", "local ", "averaging "};
      log::info("{}steps are recorded and replayed: {} operations each",
                kNames[static_cast<std::size_t>(kind())], step.work.operations());
    }
    return step;
  }
  if (first_without == host.rank()) log::warning("steps are enqueued one by one: {}", reason);
  records_ = false;
  recordings_ = {};
  return {};
}

// The whole is asked for last, so that it holds the parts.
ProcessorAccount Trainer::processor_account() {
  ProcessorAccount account{.data = parts_.train.processor_seconds() + parts_.test.processor_seconds()};
  for (Communicator* communicator : communicators_) {
    if (communicator->size() > 1) account.communication += communicator->stream().processor_seconds();
  }
  account.compute = processor_seconds() - account.communication - account.data;
  return account;
}

// Everything of a step that is on a stream. Full buckets leave while the last micro-batch's backward is still
// at earlier layers.
void Trainer::enqueue_step() {
  train_.rewind();
  barrier_ ? barrier_->keep_statistics(stream_) : parts_.network.keep_statistics(stream_);
  const std::int64_t last = options_.accumulation - 1;
  if (delayed_ && delayed_->under_way()) {
    delayed_->exchange(stream_, clock_.buckets());
    clock_.time(Phase::optimizer, 0, [&] { delayed_->look_ahead(stream_, slot_); });
  }
  for (std::int64_t micro = 0; micro < last; ++micro) micro_batch(micro);
  if (delayed_) return enqueue_delayed(last);
  if (kind() != StepKind::synchronous) return enqueue_apart(last);
  GradientBuckets& buckets = parts_.buckets;
  micro_batch(last, &buckets);
  if (crosses()) return leave_exchange(last);
  clock_.time(Phase::exposed_communication, last, [&] {
    buckets.wait(stream_);
    if (parts_.step_statistics != nullptr) parts_.step_statistics->finish(stream_);
    check_calls();
  });
  clock_.time(Phase::optimizer, last, [&] { update(); });
}

// The end of a step whose gradients are waited for in the next.
void Trainer::leave_exchange(std::int64_t last) {
  clock_.time(Phase::exposed_communication, last, [] {});
  barrier_->leave(stream_, slot_);
  clock_.time(Phase::optimizer, last, [] {});
}

// The end of a step that takes this rank's own gradients. A GPU's account has the optimizer of an averaging
// step in exposed communication, which ends before the optimizer does in all other steps.
void Trainer::enqueue_apart(std::int64_t last) {
  micro_batch(last);
  const bool averages = kind() == StepKind::averaging;
  if (!averages && !gossip_) clock_.time(Phase::exposed_communication, last, [] {});
  clock_.time(Phase::optimizer, last, [&] { update(); });
  if (gossip_) clock_.time(Phase::exposed_communication, last, [&] { gossip_->average(stream_); });
  if (!averages) return;
  clock_.time(Phase::exposed_communication, last, [&] {
    local_->average(stream_, slot_, clock_.buckets());
    check_calls();
  });
}

// The end of a step that takes the gradients of the one before, which have travelled since it began.
void Trainer::enqueue_delayed(std::int64_t last) {
  const bool under_way = delayed_->under_way();
  micro_batch(last);
  clock_.time(Phase::exposed_communication, last, [&] {
    if (!under_way) return;
    parts_.buckets.wait(stream_);
    check_calls();
  });
  clock_.time(Phase::optimizer, last, [&] {
    delayed_->judge_statistics(stream_);
    if (under_way) {
      delayed_->come_back(stream_);
      delayed_->take_scale(stream_);
      update();
      delayed_->give_scale(stream_);
    } else {
      results_.copy_control(stream_, slot_, parts_.optimizer.control());
    }
    delayed_->keep(stream_);
  });
}

float Trainer::gradient_scale() const {
  const std::int64_t all = parts_.train.global_batch();
  return 1.0f / static_cast<float>(kind() == StepKind::synchronous ? all : all / parts_.communicator.size());
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
                  .gate = barrier_ ? barrier_->gate() : nullptr,
                  .observer = parts_.observer,
                  .across = parts_.across};
  clock_.time(Phase::forward, micro, [&] {
    parts_.network.forward(*batch, pass);
    parts_.network.copy_loss(stream_, results_.loss(slot_, micro));
    if (barrier_) barrier_->finish();  // before gradients are written again
  });
  if (exchange != nullptr) parts_.buckets.begin(stream_, clock_.buckets(), parts_.optimizer.loss_scale());
  clock_.time(Phase::backward, micro, [&] {
    parts_.network.backward(pass);
    if (exchange != nullptr) return;
    parts_.buckets.keep_micro_batch(stream_, micro);
    if (parts_.step_statistics != nullptr) parts_.step_statistics->keep_micro_batch(stream_, micro);
  });
}

// Judged on the exchanged gradients. Sums are the same bits on every rank, so all ranks decide alike without
// asking; with an exchange that leaves each rank something else they ask. A loss that is not finite on one
// rank makes its gradients, and so what is exchanged, not finite.
void Trainer::update() {
  Optimizer& optimizer = parts_.optimizer;
  optimizer.check_gradients(stream_);
  if (kind() == StepKind::synchronous) parts_.buckets.agree_finite(stream_, &optimizer.control()->finite);
  optimizer.step(stream_, slot_);
  if (!delayed_) parts_.network.restore_statistics_if_skipped(stream_, optimizer.control());
  results_.copy_control(stream_, slot_, optimizer.control());
}

// A plan is new in the first step of its kind, and where it is recorded: in the third and the fourth, or
// later.
void Trainer::check_calls() {
  const std::int64_t before = enqueued_of_kind_[static_cast<std::size_t>(kind())];
  const std::int64_t first = delayed_ ? 1 : 0;  // that exchanges something, in a training from its beginning
  const bool new_plan = before <= first || (records_ && before >= first_recorded_);
  for (Communicator* communicator : communicators_) {
    const CallCheck check = communicator->call_check();
    if (check == CallCheck::step || (check == CallCheck::plan && new_plan)) communicator->check_calls();
  }
}

// Nothing is left to compare before each collective.
void Trainer::check_replayed_calls() {
  if (kind() == StepKind::local) return;
  for (Communicator* communicator : communicators_) {
    const CallCheck check = communicator->call_check();
    if (check == CallCheck::step || check == CallCheck::collective) communicator->check_calls();
  }
}

StepAccount Trainer::take_account() {
  settle_but(0);
  return clock_.take();
}

Evaluation Trainer::evaluate() {
  set_current_step(0);
  if (barrier_) settle_but(0);
  clock_.restart();
  if (local_) {
    settle_but(0);
    if (local_->apart_before(step_)) stop_if_a_rank_failed(step_);
    local_->show_average(stream_, step_);
    if (gossip_) local_->remember_average(stream_);
  }
  average_statistics();
  LossTotals mine;
  test_.seek(0, 0);
  const Pass pass{.stream = stream_, .mode = Mode::evaluation};
  const std::int64_t steps = parts_.test.steps_in_epoch(0);
  for (std::int64_t step = 0; step < steps; ++step) {
    test_.begin(stream_, StepSlot::of(step));
    parts_.network.forward(test_.next(), pass);
    test_.prefetch(StepSlot::of(step + 1));
    mine.add(parts_.network.loss(stream_));
  }
  const LossTotals all = over_ranks(parts_.communicator.host(), mine);
  const double samples = static_cast<double>(all.samples);
  return {.loss = all.mean(), .accuracy = static_cast<double>(all.correct) / samples, .samples = all.samples};
}

// Evaluation's; training's own stay as they are.
void Trainer::average_statistics() {
  parts_.network.copy_statistics(stream_);
  if (parts_.step_statistics != nullptr) return;  // they are the mean already, on every rank
  average_over_ranks(stream_, parts_.communicator, parts_.network.evaluation_statistics(),
                     parts_.communicator.size());
}

}  // namespace lockstep
