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
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/timeline.h"
#include "launch/account/ledger.h"

namespace lockstep {

class StepTimes {
 public:
  // Of steps on the stream, which this waits for. buckets: 0 where nobody asks for their sums.
  // crossings: buckets whose exchange may go on within the next step; 0 where none does.
  StepTimes(Stream& stream, std::int64_t micro_batches, std::size_t buckets = 0, std::size_t crossings = 0);

  // A step on the stream, in this order. begun(), has_data() and ended() stay outside of recorded work; the
  // others may be recorded, for each slot apart. step: its number, for the timeline. begun() stands before it
  // waits for its batches, for which the host has waited so long since the step before it. observed: whether
  // moments of its buckets are taken.
  void begun(Stream& stream, StepSlot slot, std::int64_t step, double host_waited_seconds,
             bool observed = true);
  void has_data(Stream& stream, StepSlot slot);  // behind that
  // Its buckets stay where they are.
  void without_exchange(StepSlot slot) { slots_[slot.index].exchanges = false; }
  // Behind forward, backward, and the wait for the sums of gradients (Phase::exposed_communication).
  void done(Stream& stream, StepSlot slot, Phase phase, std::int64_t micro_batch = 0);
  // Moments of the last backward pass; empty where none are taken.
  std::span<BucketMoments> buckets(StepSlot slot) {
    Moments& moments = slots_[slot.index];
    return moments.observed ? std::span<BucketMoments>(moments.buckets) : std::span<BucketMoments>();
  }
  void ended(Stream& stream, StepSlot slot);
  // Where the exchange goes on behind the step: of each of its buckets in turn, before compute waits for it,
  // behind that, and behind the update of its parameters: with the slot of the step whose exchange it is,
  // before the next step ends its first forward pass, or behind the step where there is no next one yet.
  void begin_wait(Stream& stream, StepSlot slot, std::size_t bucket);
  void end_wait(Stream& stream, StepSlot slot, std::size_t bucket);
  void end_update(Stream& stream, StepSlot slot, std::size_t bucket);

  // Adds the account of a slot's step, which the device has ended, its spans to the timeline, and its buckets
  // to the ledger, if there is one. In the order of steps, and before another step with the slot begins. What
  // lies between the end of the step before it and its beginning, when the device had nothing to do, is a
  // wait for data as far as the host waited for its batches, and idle beyond that (nothing is told of the
  // first step since restart()).
  void account(StepSlot slot, StepAccount& account, Timeline* timeline = nullptr, Ledger* ledger = nullptr);
  // Whatever the device does between the steps enqueued so far and the next is no step's.
  void restart() { restarted_ = true; }

 private:
  // Of a bucket whose exchange went on.
  struct Crossing {
    explicit Crossing(Device device) : needed(device), arrived(device), updated(device) {}
    TimedEvent needed;
    TimedEvent arrived;
    TimedEvent updated;
  };
  struct Moments {
    Moments(Device device, std::int64_t micro_batches, std::size_t bucket_count, std::size_t crossing_count);
    TimedEvent& end_of(Phase phase, std::int64_t micro_batch);

    bool enqueued = false;  // and not accounted for
    bool exchanges = true;
    bool observed = true;
    bool first = false;  // since restart()
    std::int64_t step = 0;
    double host_waited_seconds = 0;
    TimedEvent begun;
    TimedEvent has_data;
    std::vector<TimedEvent> forward;
    std::vector<TimedEvent> backward;
    std::vector<BucketMoments> buckets;
    std::vector<Crossing> crossings;   // by bucket
    std::vector<std::size_t> crossed;  // buckets, in the order in which they were waited for
    bool within_next = false;          // step
    TimedEvent exchanged;
    TimedEvent ended;
  };

  // A stretch of compute's time that is another phase's than the one it lies in.
  struct Piece {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    double seconds = 0;
  };

  void record_buckets(Moments& step, Timeline* timeline, Ledger* ledger);
  // Of an exchange that went on: the waits, and into the account and the timeline.
  void account_crossed(Moments& step, StepAccount& account, Timeline* timeline);
  // What is left of a phase without those pieces, into the timeline.
  static void record_between(std::span<const Piece> pieces, Span span, Timeline& timeline);
  // What the host's clock says at a moment of the device, so long after the first.
  std::int64_t host_ns(double seconds) const { return first_ns_ + std::llround(seconds * 1e9); }

  std::array<Moments, StepSlot::kCount> slots_;
  TimedEvent last_ended_;  // of the last step accounted for; before there is one the first moment
  std::int64_t first_ns_;
  std::vector<BucketWait> waits_;  // of the step that is accounted for
  std::vector<Piece> pieces_;      // that its exchange takes of the next step's first forward pass
  double drained_seconds_ = 0;     // that it took behind its step, before the next one began
  StepSlot last_begun_;
  double accounted_seconds_ = 0;  // since the first moment, up to last_ended_
  bool restarted_ = true;
};

}  // namespace lockstep
