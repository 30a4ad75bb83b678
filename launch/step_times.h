// SPDX-License-Identifier: Apache-2.0
//
// StepTimes: where a GPU's time goes, step by step, by moments that the device itself takes. The host only
// enqueues: what its clock says of a phase is how long that took to enqueue. Works for steps enqueued one by
// one and for replayed ones. Timelines get the device's moments by the host's clock: both are read once, in
// the beginning, and from there on the device's moments are added up.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/buckets.h"
#include "core/stream.h"
#include "core/timeline.h"

namespace lockstep {

class StepTimes {
 public:
  // Of steps on the stream, which this waits for. buckets: 0 where nobody asks for their sums.
  StepTimes(Stream& stream, std::int64_t micro_batches, std::size_t buckets = 0);

  // A step on the stream, in this order. begun(), has_data() and ended() stay outside of recorded work; the
  // others may be recorded, for even and odd steps apart. Before it waits for its batches; the host has
  // waited so long for them since the step before it.
  void begun(Stream& stream, double host_waited_seconds);
  void has_data(Stream& stream);  // behind that
  void forward_done(Stream& stream, std::int64_t micro_batch);
  void backward_done(Stream& stream, std::int64_t micro_batch);
  std::span<BucketMoments> buckets() { return inner(begun_ - 1).buckets; }  // for the last backward
  void exchanged(Stream& stream);  // behind the wait for the sums of gradients
  void ended(Stream& stream);

  // Adds the account of the oldest step not accounted for, which the device has ended, and its spans to the
  // timeline, if there is one; at most one step younger than it may have begun. What lies between the end of
  // the step before it and its beginning, when the device had nothing to do, is a wait for data as far as the
  // host waited for its batches, and idle beyond that (nothing is told of the first step since restart()).
  void account(StepAccount& account, Timeline* timeline = nullptr);
  // Whatever the device does between the steps enqueued so far and the next is no step's.
  void restart() { first_ = begun_; }

 private:
  // Moments that recorded work takes: a step's successor must not take them, too.
  struct Inner {
    Inner(Device device, std::int64_t micro_batches, std::size_t bucket_count);
    std::vector<TimedEvent> forward;
    std::vector<TimedEvent> backward;
    std::vector<BucketMoments> buckets;
    TimedEvent exchanged;
  };
  // The others are asked for across steps.
  struct Outer {
    explicit Outer(Device device) : begun(device), has_data(device), ended(device) {}
    double host_waited_seconds = 0;
    TimedEvent begun;
    TimedEvent has_data;
    TimedEvent ended;
  };

  void record_buckets(Inner& within, Outer& around, Timeline& timeline);
  Inner& inner(std::int64_t step) { return inner_[static_cast<std::size_t>(step % 2)]; }
  Outer& outer(std::int64_t step) { return outer_[static_cast<std::size_t>(step % 4)]; }

  // What the host's clock says at a moment of the device, so long after anchor_.
  std::int64_t host_ns(double seconds) const { return anchor_ns_ + std::llround(seconds * 1e9); }

  std::array<Inner, 2> inner_;
  std::array<Outer, 4> outer_;
  TimedEvent anchor_;
  std::int64_t anchor_ns_;
  double accounted_seconds_ = 0;  // since anchor_, up to the end of the last step accounted for
  std::int64_t begun_ = 0;        // steps
  std::int64_t accounted_ = 0;    // steps
  std::int64_t first_ = 0;        // since restart()
};

}  // namespace lockstep
