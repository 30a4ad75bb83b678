// SPDX-License-Identifier: Apache-2.0
//
// StepTimes: a GPU's time by phase in each step, from events on the device. The host's clock would only show
// how long a phase takes to enqueue. Works for enqueued and for replayed steps. For timelines, both clocks
// are read once in the constructor; later moments are that reading plus device time.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/gradients/buckets.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/timeline.h"
#include "launch/train/clock/layer_marks.h"
#include "launch/train/clock/ledger.h"

namespace lockstep {

class StepTimes {
 public:
  // For steps on the stream; synchronizes it. buckets: 0 where no caller reads their sums. crossings: buckets
  // whose exchange may continue in the next step; 0: none.
  StepTimes(Stream& stream, std::int64_t micro_batches, std::size_t buckets = 0, std::size_t crossings = 0);

  // The calls of a step on the stream, in this order. begun(), has_data() and ended() stay outside of
  // recorded work; the other calls may be recorded, for each slot separately. step: its number, for the
  // timeline. Call begun() before the step waits for its batches. host_waited_seconds: how long the host
  // waited for them since the step before. observed: whether moments of its buckets are taken.
  void begun(Stream& stream, StepSlot slot, std::int64_t step, double host_waited_seconds,
             bool observed = true);
  void has_data(Stream& stream, StepSlot slot);  // after that wait
  // The observer is called for each layer of the steps that begin from now on, when they are accounted for;
  // null: no observer. Call when all earlier steps are accounted for. events: see LayerMarks.
  void observe_layers(Stream& stream, LayerObserver* observer, std::size_t events);
  bool observes_layers() const { return layers_ != nullptr; }
  // Call first in the work that may be recorded. Returns the marker of its layers, null without an observer.
  LayerMarker* enqueues_layers(StepSlot slot);
  // This step does not exchange its buckets.
  void without_exchange(StepSlot slot) { slots_[slot.index].exchanges = false; }
  // After forward, backward, and the wait for the sums of gradients (Phase::exposed_communication).
  void done(Stream& stream, StepSlot slot, Phase phase, std::int64_t micro_batch = 0);
  // Moments of the last backward pass; empty where none are taken.
  std::span<BucketMoments> buckets(StepSlot slot) {
    Moments& moments = slots_[slot.index];
    return moments.observed ? std::span<BucketMoments>(moments.buckets) : std::span<BucketMoments>();
  }
  void ended(Stream& stream, StepSlot slot);
  // Where the exchange continues after the step: for each bucket in turn, call these before compute waits for
  // it, after that wait, and after the update of its parameters. slot: of the step that made the gradients.
  // The calls come before the end of the next step's first forward pass, or after the step if there is no
  // next one yet.
  void begin_wait(Stream& stream, StepSlot slot, std::size_t bucket);
  void end_wait(Stream& stream, StepSlot slot, std::size_t bucket);
  void end_update(Stream& stream, StepSlot slot, std::size_t bucket);

  // Adds a slot's step, which the device has ended, to the account, the timeline and the ledger. Call it in
  // the order of steps, and before another step with the slot begins. Device time between the end of the step
  // before and the beginning of this one counts as data_wait as far as the host waited for batches, and as
  // idle beyond that; the first step since restart() has no such time.
  void account(StepSlot slot, StepAccount& account, Timeline* timeline = nullptr, Ledger* ledger = nullptr);
  // GPU time between the steps enqueued so far and the next one belongs to no step.
  void restart() { restarted_ = true; }

 private:
  // A bucket whose exchange continues after its step.
  struct Crossing {
    explicit Crossing(Device device) : needed(device), arrived(device), updated(device) {}
    TimedEvent needed;
    TimedEvent arrived;
    TimedEvent updated;
  };
  struct Moments {
    Moments(Device device, std::int64_t micro_batches, std::size_t bucket_count, std::size_t crossing_count);
    TimedEvent& end_of(Phase phase, std::int64_t micro_batch);

    bool enqueued = false;  // and not accounted for yet
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
    std::optional<LayerMarks> layers;  // once an observer was set
    std::vector<Crossing> crossings;   // by bucket
    std::vector<std::size_t> crossed;  // buckets, in the order in which they were waited for
    bool within_next = false;          // the waits lie in the next step
    TimedEvent exchanged;
    TimedEvent ended;
  };

  // A part of a phase's time that counts as another phase.
  struct Piece {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    double seconds = 0;
  };

  void record_buckets(Moments& step, Timeline* timeline, Ledger* ledger);
  void tell_layers(Moments& step);
  // For an exchange that continues after its step: fills waits_, pieces_ and drained_seconds_, and adds to
  // account and timeline.
  void account_crossed(Moments& step, StepAccount& account, Timeline* timeline);
  // Adds the phase's span without the pieces to the timeline.
  static void record_between(std::span<const Piece> pieces, Span span, Timeline& timeline);
  // The host's clock at this many seconds of device time after the first moment.
  std::int64_t host_ns(double seconds) const { return first_ns_ + std::llround(seconds * 1e9); }

  std::array<Moments, StepSlot::kCount> slots_;
  TimedEvent last_ended_;  // of the last step accounted for; before the first step, the first moment
  std::int64_t first_ns_;
  std::vector<BucketWait> waits_;  // of the step that is accounted for
  std::vector<Piece> pieces_;      // of its exchange in the next step's first forward pass
  double drained_seconds_ = 0;     // of its exchange after its step, before the next one began
  StepSlot last_begun_;
  LayerObserver* layers_ = nullptr;
  double accounted_seconds_ = 0;  // since the first moment, up to last_ended_
  bool restarted_ = true;
};

}  // namespace lockstep
