// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/step_times.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep {

StepTimes::Moments::Moments(Device device, std::int64_t micro_batches, std::size_t bucket_count,
                            std::size_t crossing_count)
    : begun(device), has_data(device), exchanged(device), ended(device) {
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    forward.emplace_back(device);
    backward.emplace_back(device);
  }
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) buckets.emplace_back(device);
  for (std::size_t bucket = 0; bucket < crossing_count; ++bucket) crossings.emplace_back(device);
  crossed.reserve(crossing_count);
}

TimedEvent& StepTimes::Moments::end_of(Phase phase, std::int64_t micro_batch) {
  if (phase == Phase::exposed_communication) return exchanged;
  CHECK(phase == Phase::forward || phase == Phase::backward, "{} has no event at its end", name_of(phase));
  return (phase == Phase::forward ? forward : backward)[static_cast<std::size_t>(micro_batch)];
}

StepTimes::StepTimes(Stream& stream, std::int64_t micro_batches, std::size_t buckets, std::size_t crossings)
    : slots_{Moments(stream.device(), micro_batches, buckets, crossings),
             Moments(stream.device(), micro_batches, buckets, crossings)},
      last_ended_(stream.device()) {
  waits_.reserve(crossings);
  pieces_.reserve(crossings);
  stream.record(last_ended_);
  stream.synchronize();
  first_ns_ = now_ns();
}

void StepTimes::begun(Stream& stream, StepSlot slot, std::int64_t step, double host_waited_seconds,
                      bool observed) {
  Moments& moments = slots_[slot.index];
  CHECK(!moments.enqueued, "step {} is not accounted for yet", moments.step);
  moments.first = std::exchange(restarted_, false);
  last_begun_ = slot;
  moments.exchanges = true;
  moments.observed = observed;
  moments.crossed.clear();
  moments.step = step;
  moments.host_waited_seconds = host_waited_seconds;
  stream.record(moments.begun);
}
void StepTimes::has_data(Stream& stream, StepSlot slot) { stream.record(slots_[slot.index].has_data); }
void StepTimes::observe_layers(Stream& stream, LayerObserver* observer, std::size_t events) {
  layers_ = observer;
  for (Moments& each : slots_)
    if (observer != nullptr && !each.layers) each.layers.emplace(stream, events);
}
LayerMarker* StepTimes::enqueues_layers(StepSlot slot) {
  if (layers_ == nullptr) return nullptr;
  LayerMarks& marks = *slots_[slot.index].layers;
  marks.restart();
  return &marks;
}
void StepTimes::done(Stream& stream, StepSlot slot, Phase phase, std::int64_t micro_batch) {
  Moments& step = slots_[slot.index];
  stream.record(step.end_of(phase, micro_batch));
  if (step.layers) step.layers->interrupt();
}
void StepTimes::ended(Stream& stream, StepSlot slot) {
  slots_[slot.index].enqueued = true;
  stream.record(slots_[slot.index].ended);
}

void StepTimes::begin_wait(Stream& stream, StepSlot slot, std::size_t bucket) {
  Moments& step = slots_[slot.index];
  step.within_next = last_begun_.index != slot.index;
  step.crossed.push_back(bucket);
  stream.record(step.crossings[bucket].needed);
}
void StepTimes::end_wait(Stream& stream, StepSlot slot, std::size_t bucket) {
  stream.record(slots_[slot.index].crossings[bucket].arrived);
}
void StepTimes::end_update(Stream& stream, StepSlot slot, std::size_t bucket) {
  Moments& step = slots_[slot.index];
  stream.record(step.crossings[bucket].updated);
  for (Moments& each : slots_)  // the next step's layers are interrupted
    if (each.layers) each.layers->interrupt();
}

void StepTimes::account_crossed(Moments& step, StepAccount& account, Timeline* timeline) {
  const auto record = [&](const char* name, const Piece& piece) {
    if (timeline == nullptr) return;
    timeline->record({.name = name,
                      .track = Track::compute,
                      .index = static_cast<std::int32_t>(step.step),
                      .begin_ns = piece.begin_ns,
                      .end_ns = piece.end_ns});
  };
  waits_.clear();
  pieces_.clear();
  drained_seconds_ = 0;
  for (const std::size_t bucket : step.crossed) {
    Crossing& crossing = step.crossings[bucket];
    const double waited = crossing.arrived.seconds_since(crossing.needed);
    const double updated = crossing.updated.seconds_since(crossing.arrived);
    account[Phase::exposed_communication] += waited;
    account[Phase::optimizer] += updated;
    // Relative to the step's end, up to which account() has accounted.
    const double begin = accounted_seconds_ + crossing.needed.seconds_since(step.ended);
    const Piece wait{host_ns(begin), host_ns(begin + waited)};
    const Piece update{wait.end_ns, host_ns(begin + waited + updated)};
    waits_.push_back({.bucket = bucket, .begin_ns = wait.begin_ns, .end_ns = wait.end_ns});
    record("exchange", wait);
    record("optimizer", update);
    if (step.within_next)
      pieces_.push_back({wait.begin_ns, update.end_ns, waited + updated});
    else
      drained_seconds_ += waited + updated;
  }
}

void StepTimes::record_between(std::span<const Piece> pieces, Span span, Timeline& timeline) {
  const std::int64_t end_ns = span.end_ns;
  for (const Piece& piece : pieces) {
    span.end_ns = piece.begin_ns;
    timeline.record(span);
    span.begin_ns = piece.end_ns;
  }
  span.end_ns = end_ns;
  timeline.record(span);
}

void StepTimes::account(StepSlot slot, StepAccount& account, Timeline* timeline, Ledger* ledger) {
  Moments& step = slots_[slot.index];
  CHECK(std::exchange(step.enqueued, false), "no step to account for");
  const double gap = step.begun.seconds_since(last_ended_);
  if (!step.first) {
    const double idle_seconds = std::max(0.0, gap - drained_seconds_);
    const double data = std::min(idle_seconds, step.host_waited_seconds);
    account[Phase::data_wait] += data;
    account[Phase::idle] += idle_seconds - data;
  }
  accounted_seconds_ += gap;
  const double step_begin = accounted_seconds_;
  if (step.exchanges && step.observed) record_buckets(step, timeline, ledger);
  tell_layers(step);
  ComputeMoments compute;
  TimedEvent* last = &step.begun;
  const auto phase = [&](Phase which, const char* name, TimedEvent& end, std::span<const Piece> pieces = {}) {
    const double begin_seconds = accounted_seconds_;
    const double seconds = end.seconds_since(*std::exchange(last, &end));
    account[which] += seconds;
    for (const Piece& piece : pieces) account[which] -= piece.seconds;
    accounted_seconds_ += seconds;
    if (which == Phase::backward) {  // keeps the last micro-batch's
      compute.backward_ns = host_ns(begin_seconds);
      compute.waited_ns = host_ns(accounted_seconds_);
    }
    if (which == Phase::exposed_communication) compute.resumed_ns = host_ns(accounted_seconds_);
    if (timeline == nullptr) return;
    record_between(pieces,
                   {.name = name,
                    .track = which == Phase::data_wait ? Track::data : Track::compute,
                    .index = static_cast<std::int32_t>(step.step),
                    .begin_ns = host_ns(begin_seconds),
                    .end_ns = host_ns(accounted_seconds_)},
                   *timeline);
  };
  phase(Phase::data_wait, "data", step.has_data);
  for (std::size_t micro = 0; micro < step.forward.size(); ++micro) {
    phase(Phase::forward, "forward", step.forward[micro], micro == 0 ? pieces_ : std::span<const Piece>());
    phase(Phase::backward, "backward", step.backward[micro]);
  }
  phase(Phase::exposed_communication, "exchange", step.exchanged);
  phase(Phase::optimizer, "optimizer", step.ended);
  if (timeline != nullptr) {
    timeline->record({.name = "step",
                      .track = Track::step,
                      .index = static_cast<std::int32_t>(step.step),
                      .begin_ns = host_ns(step_begin),
                      .end_ns = host_ns(accounted_seconds_)});
  }
  account_crossed(step, account, timeline);
  compute.waits = waits_;
  if (ledger != nullptr) step.observed ? ledger->end_step(compute) : ledger->skip_step();
  std::swap(step.ended, last_ended_);  // the slot's next step ends before this event is read again
}

// For the step that begins at accounted_seconds_, like record_buckets().
void StepTimes::tell_layers(Moments& step) {
  if (layers_ == nullptr || !step.layers) return;
  step.layers->read([&](std::size_t node, Direction direction, TimedEvent& begin, TimedEvent& end) {
    layers_->layer_ran(node, direction, host_ns(accounted_seconds_ + begin.seconds_since(step.begun)),
                       host_ns(accounted_seconds_ + end.seconds_since(step.begun)));
  });
}

// For the step that begins at accounted_seconds_.
void StepTimes::record_buckets(Moments& step, Timeline* timeline, Ledger* ledger) {
  const auto moment = [&](TimedEvent& event) {
    return host_ns(accounted_seconds_ + event.seconds_since(step.begun));
  };
  for (std::size_t bucket = 0; bucket < step.buckets.size(); ++bucket) {
    BucketMoments& sum = step.buckets[bucket];
    const std::int64_t final_ns = moment(sum.produced), begun_ns = moment(sum.begun),
                       ended_ns = moment(sum.ended);
    if (timeline != nullptr) timeline->record(bucket_span(bucket, begun_ns, ended_ns));
    if (ledger == nullptr) continue;
    ledger->add(
        bucket,
        {.final_ns = final_ns, .enqueued_ns = final_ns, .started_ns = begun_ns, .finished_ns = ended_ns}, 0);
  }
}

}  // namespace lockstep
