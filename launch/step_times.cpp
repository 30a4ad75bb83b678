// SPDX-License-Identifier: Apache-2.0
#include "launch/step_times.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep {

StepTimes::Inner::Inner(Device device, std::int64_t micro_batches, std::size_t bucket_count)
    : exchanged(device) {
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    forward.emplace_back(device);
    backward.emplace_back(device);
  }
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) buckets.emplace_back(device);
}

StepTimes::StepTimes(Stream& stream, std::int64_t micro_batches, std::size_t buckets)
    : inner_{Inner(stream.device(), micro_batches, buckets), Inner(stream.device(), micro_batches, buckets)},
      outer_{Outer(stream.device()), Outer(stream.device()), Outer(stream.device()), Outer(stream.device())},
      anchor_(stream.device()) {
  stream.record(anchor_);
  stream.synchronize();
  anchor_ns_ = now_ns();
}

void StepTimes::begun(Stream& stream, double host_waited_seconds) {
  CHECK(begun_ - accounted_ < 2, "step {} was not accounted for", accounted_);
  Outer& around = outer(begun_++);
  around.host_waited_seconds = host_waited_seconds;
  stream.record(around.begun);
}
void StepTimes::has_data(Stream& stream) { stream.record(outer(begun_ - 1).has_data); }
void StepTimes::forward_done(Stream& stream, std::int64_t micro_batch) {
  stream.record(inner(begun_ - 1).forward[static_cast<std::size_t>(micro_batch)]);
}
void StepTimes::backward_done(Stream& stream, std::int64_t micro_batch) {
  stream.record(inner(begun_ - 1).backward[static_cast<std::size_t>(micro_batch)]);
}
void StepTimes::exchanged(Stream& stream) { stream.record(inner(begun_ - 1).exchanged); }
void StepTimes::ended(Stream& stream) { stream.record(outer(begun_ - 1).ended); }

void StepTimes::account(StepAccount& account, Timeline* timeline) {
  CHECK(accounted_ < begun_, "no step to account for");
  const std::int64_t step = accounted_++;
  Inner& within = inner(step);
  Outer& around = outer(step);
  const double gap = around.begun.seconds_since(step > 0 ? outer(step - 1).ended : anchor_);
  if (step > first_) {
    const double data = std::min(gap, around.host_waited_seconds);
    account[Phase::data_wait] += data;
    account[Phase::idle] += gap - data;
  }
  accounted_seconds_ += gap;
  if (timeline != nullptr) record_buckets(within, around, *timeline);
  TimedEvent* last = &around.begun;
  const auto phase = [&](Phase which, const char* name, TimedEvent& end) {
    const double begin_seconds = accounted_seconds_;
    const double seconds = end.seconds_since(*std::exchange(last, &end));
    account[which] += seconds;
    accounted_seconds_ += seconds;
    if (timeline == nullptr) return;
    timeline->record({.name = name,
                      .track = which == Phase::data_wait ? Track::data : Track::compute,
                      .index = static_cast<std::int32_t>(step),
                      .begin_ns = host_ns(begin_seconds),
                      .end_ns = host_ns(accounted_seconds_)});
  };
  phase(Phase::data_wait, "data", around.has_data);
  for (std::size_t micro = 0; micro < within.forward.size(); ++micro) {
    phase(Phase::forward, "forward", within.forward[micro]);
    phase(Phase::backward, "backward", within.backward[micro]);
  }
  phase(Phase::exposed_communication, "exchange", within.exchanged);
  phase(Phase::optimizer, "optimizer", around.ended);
}

// Of the step that begins at accounted_seconds_.
void StepTimes::record_buckets(Inner& within, Outer& around, Timeline& timeline) {
  const auto moment = [&](TimedEvent& event) {
    return host_ns(accounted_seconds_ + event.seconds_since(around.begun));
  };
  for (std::size_t bucket = 0; bucket < within.buckets.size(); ++bucket) {
    BucketMoments& sum = within.buckets[bucket];
    timeline.record(bucket_span(bucket, moment(sum.begun), moment(sum.ended)));
  }
}

}  // namespace lockstep
