// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/step_clock.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// On a GPU, data_wait and optimizer end outside of recorded work.
bool ends_within_step(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::exposed_communication;
}

double computed(const StepAccount& account) {
  return account[Phase::forward] + account[Phase::backward] + account[Phase::optimizer];
}

}  // namespace

const char* span_name(Phase phase) {
  switch (phase) {
    case Phase::data_wait:
      return "data";
    case Phase::exposed_communication:
      return "exchange";
    default:
      return name_of(phase).data();
  }
}

StepClock::StepClock(Stream& stream, std::int64_t micro_batches, std::size_t buckets, Timeline* timeline,
                     Ledger* ledger)
    : stream_(stream), timeline_(timeline), ledger_(ledger) {
  waits_.reserve(buckets);
  if (stream.runs_on_host()) return;
  times_.emplace(stream, micro_batches, timeline == nullptr && ledger == nullptr ? 0 : buckets, buckets);
}

std::int64_t StepClock::enter(Phase phase) {
  own_.enter(phase);
  return host_.enter(phase);
}

void StepClock::begin(StepSlot slot, std::int64_t step, bool observed) {
  slot_ = slot;
  step_ = step;
  step_begin_ns_ = enter(Phase::data_wait);
  if (times_) times_->begun(stream_, slot, step, fetch_seconds_, observed);
}

void StepClock::has_data() {
  if (times_) return times_->has_data(stream_, slot_);
  record_span("fetch", Track::data, step_begin_ns_, now_ns());
}

void StepClock::rest() { record_span("step", Track::step, step_begin_ns_, enter(Phase::rest)); }

void StepClock::begin_phase(Phase phase) {
  begin_ns_ = enter(phase);
  phase_ = phase;
}

void StepClock::done(Phase phase, std::int64_t micro_batch) {
  phase_.reset();
  if (times_) {
    if (ends_within_step(phase)) times_->done(stream_, slot_, phase, micro_batch);
    return;
  }
  const bool waited = phase == Phase::exposed_communication;
  const std::int64_t end_ns = waited ? enter(Phase::rest) : now_ns();
  if (phase == Phase::backward) compute_.backward_ns = begin_ns_;  // keeps the last micro-batch's
  if (waited) {
    compute_.waited_ns = begin_ns_;
    compute_.resumed_ns = end_ns;
  }
  record_piece(phase, end_ns);
}

void StepClock::record_span(const char* name, Track track, std::int64_t begin_ns, std::int64_t end_ns) {
  if (timeline_ == nullptr || times_) return;
  timeline_->record({.name = name,
                     .track = track,
                     .index = static_cast<std::int32_t>(step_),
                     .begin_ns = begin_ns,
                     .end_ns = end_ns});
}

void StepClock::record_piece(Phase phase, std::int64_t end_ns) {
  record_span(span_name(phase), phase == Phase::data_wait ? Track::data : Track::compute, begin_ns_, end_ns);
}

void StepClock::defer_exchange() {
  exchange_deferred_ = true;
  waits_.clear();
}

std::optional<Phase> StepClock::interrupt() {
  if (phase_) record_piece(*phase_, now_ns());
  return phase_;
}

void StepClock::resume(std::optional<Phase> interrupted) {
  if (interrupted) return begin_phase(*interrupted);
  phase_.reset();
  enter(Phase::rest);
}

void StepClock::begin_wait(StepSlot slot, std::size_t bucket) {
  begin_phase(Phase::exposed_communication);
  if (times_) times_->begin_wait(stream_, slot, bucket);
}

void StepClock::end_wait(StepSlot slot, std::size_t bucket) {
  const std::int64_t begin_ns = begin_ns_;
  begin_phase(Phase::optimizer);
  record_span(span_name(Phase::exposed_communication), Track::compute, begin_ns, begin_ns_);
  waits_.push_back({.bucket = bucket, .begin_ns = begin_ns, .end_ns = begin_ns_});
  if (times_) times_->end_wait(stream_, slot, bucket);
}

void StepClock::end_update(StepSlot slot, std::size_t bucket) {
  record_piece(Phase::optimizer, now_ns());
  if (times_) times_->end_update(stream_, slot, bucket);
}

void StepClock::exchange_ended() {
  exchange_deferred_ = false;
  close_ledger();
}

// On a GPU, settle() does this.
void StepClock::close_ledger() {
  if (times_ || ledger_ == nullptr) return;
  compute_.waits = waits_;
  ledger_->read_log();
  ledger_->end_step(compute_);
  if (timeline_ != nullptr && timeline_->recording()) record_flows(*ledger_, *timeline_);
  waits_.clear();
}

std::span<BucketMoments> StepClock::buckets() {
  return times_ ? times_->buckets(slot_) : std::span<BucketMoments>();
}

void StepClock::end() {
  if (times_) times_->ended(stream_, slot_);
  if (!exchange_deferred_) close_ledger();
}

void StepClock::fetch(const std::function<void()>& work) {
  const std::int64_t begin_ns = enter(Phase::data_wait);
  work();
  const std::int64_t end_ns = now_ns();
  fetch_seconds_ = seconds_between(begin_ns, end_ns);
  record_span("fetch", Track::data, begin_ns, end_ns);
}

void StepClock::settle(StepSlot slot) {
  if (!times_) return;
  const double before = computed(account_);
  times_->account(slot, account_, timeline_, ledger_);
  own_device_seconds_ += computed(account_) - before;
  if (timeline_ != nullptr && timeline_->recording() && ledger_ != nullptr)
    record_flows(*ledger_, *timeline_);
}

void StepClock::restart() {
  if (times_) times_->restart();
}

StepAccount StepClock::so_far() {
  if (!times_) return host_.so_far();
  StepAccount all = before_;
  return all += account_;
}

StepAccount StepClock::take() {
  if (!times_) return host_.take(&taken_ns_);
  const std::int64_t now = now_ns();
  before_ += account_;
  StepAccount account = std::exchange(account_, {});
  const double seconds = seconds_between(std::exchange(taken_ns_, now), now);
  account[Phase::rest] = std::max(0.0, seconds - account.total());
  return account;
}

}  // namespace lockstep
