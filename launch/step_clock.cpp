// SPDX-License-Identifier: Apache-2.0
#include "launch/step_clock.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Of a GPU, whose data_wait and optimizer end outside of what is recorded.
bool ends_within_step(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::exposed_communication;
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
  if (stream.runs_on_host()) return;
  times_.emplace(stream, micro_batches, timeline == nullptr && ledger == nullptr ? 0 : buckets);
}

void StepClock::begin(StepSlot slot, std::int64_t step) {
  slot_ = slot;
  step_ = step;
  host_.enter(Phase::data_wait);
  if (times_) times_->begun(stream_, slot, step, fetch_seconds_);
}

void StepClock::has_data() {
  if (times_) times_->has_data(stream_, slot_);
}

void StepClock::done(Phase phase, std::int64_t micro_batch, std::int64_t begin_ns) {
  if (times_) {
    if (ends_within_step(phase)) times_->done(stream_, slot_, phase, micro_batch);
    return;
  }
  const std::int64_t end_ns = now_ns();
  if (phase == Phase::backward) compute_.backward_ns = begin_ns;  // the last micro-batch's stays
  if (phase == Phase::exposed_communication) {
    compute_.waited_ns = begin_ns;
    compute_.resumed_ns = end_ns;
  }
  if (timeline_ == nullptr) return;
  timeline_->record({.name = span_name(phase),
                     .track = phase == Phase::data_wait ? Track::data : Track::compute,
                     .index = static_cast<std::int32_t>(step_),
                     .begin_ns = begin_ns,
                     .end_ns = end_ns});
}

std::span<BucketMoments> StepClock::buckets() {
  return times_ ? times_->buckets(slot_) : std::span<BucketMoments>();
}

void StepClock::end() {
  if (times_) times_->ended(stream_, slot_);
}

void StepClock::fetch(const std::function<void()>& work) {
  host_.enter(Phase::data_wait);
  const std::int64_t begin_ns = now_ns();
  work();
  fetch_seconds_ = static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

void StepClock::settle(StepSlot slot) {
  if (times_) return times_->account(slot, account_, timeline_, ledger_);
  if (ledger_ == nullptr) return;
  ledger_->read_log();
  ledger_->end_step(compute_);
}

void StepClock::restart() {
  if (times_) times_->restart();
}

StepAccount StepClock::take() {
  if (!times_) return host_.take();
  const std::int64_t now = now_ns();
  StepAccount account = std::exchange(account_, {});
  const double seconds = static_cast<double>(now - std::exchange(taken_ns_, now)) * 1e-9;
  account[Phase::rest] = std::max(0.0, seconds - account.total());
  return account;
}

}  // namespace lockstep
