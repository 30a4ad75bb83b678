// SPDX-License-Identifier: Apache-2.0
//
// StepClock: accounts for the time of steps, and writes their spans to a timeline and their moments to a
// ledger. On a CPU the host's clock times the work as it runs. On a GPU StepTimes takes the moments on the
// device, and they are known when the step is settled.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/profiler_range.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "core/timeline.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/own_time.h"
#include "launch/train/clock/step_times.h"

namespace lockstep {

// Name in a timeline and in NVIDIA's profilers: a literal.
const char* span_name(Phase phase);

class StepClock {
 public:
  // The stream runs the compute and outlives this. buckets: of gradients. timeline and ledger may be null.
  StepClock(Stream& stream, std::int64_t micro_batches, std::size_t buckets, Timeline* timeline,
            Ledger* ledger = nullptr);

  // The calls of a step, in this order. step: its number, from 0. The step first waits for its batches.
  // observed: whether a GPU takes moments of its buckets, for timeline and ledger.
  void begin(StepSlot slot, std::int64_t step, bool observed);
  // This step does not exchange its buckets.
  void without_exchange() {
    if (times_) times_->without_exchange(slot_);
  }
  void has_data();
  // The work, on a CPU or as enqueued on a GPU, and all until the next of these calls, counts as the phase:
  // data_wait, forward, backward, exposed_communication or optimizer. May be recorded. On a CPU,
  // exposed_communication ends with the work, so that it equals the ledger's.
  template <typename Work>
  void time(Phase phase, std::int64_t micro_batch, Work work) {
    begin_phase(phase);
    const ProfilerRange range(span_name(phase));
    work();
    done(phase, micro_batch);
  }
  // The step's exchange continues after the step has ended. Call after time(exposed_communication). Later
  // steps call before_bucket() once for each bucket, then exchange_ended().
  void defer_exchange();
  // On a GPU only: see StepTimes.
  void observe_layers(LayerObserver* observer, std::size_t events) {
    if (times_) times_->observe_layers(stream_, observer, events);
  }
  bool observes_layers() const { return times_ && times_->observes_layers(); }
  LayerMarker* enqueues_layers() { return times_ ? times_->enqueues_layers(slot_) : nullptr; }
  // May interrupt time(). `wait` counts as exposed_communication, `update` as optimizer. slot: of the step
  // that made the gradients.
  template <typename Wait, typename Update>
  void before_bucket(StepSlot slot, std::size_t bucket, Wait wait, Update update) {
    const std::optional<Phase> interrupted = interrupt();
    begin_wait(slot, bucket);
    wait();
    end_wait(slot, bucket);
    update();
    end_update(slot, bucket);
    resume(interrupted);
  }
  void exchange_ended();
  // May interrupt time(). `wait` counts as exposed_communication; on a GPU as the interrupted phase.
  template <typename Wait>
  void wait_within(Wait wait) {
    const std::optional<Phase> interrupted = interrupt();
    begin_phase(Phase::exposed_communication);
    wait();
    record_piece(Phase::exposed_communication, now_ns());
    resume(interrupted);
  }
  // The places to which a GPU writes the moments of the step's buckets; empty on a CPU and in steps that are
  // not observed.
  std::span<BucketMoments> buckets();
  void end();
  // Phases of the host: it fetches the batches of the next step; waits for steps of a GPU; does other work.
  void fetch(const std::function<void()>& work);
  void wait_for_device() { enter(times_ ? Phase::device_wait : Phase::rest); }
  // Call after all work of the step.
  void rest();

  // The device has ended the slot's step; see StepTimes::account.
  void settle(StepSlot slot);
  // GPU time until the next step begins belongs to no step.
  void restart();
  // Time by phase since the last call; adds up to the wall time. On a CPU, the host's time. On a GPU, the
  // device's time in steps settled since then; time outside of steps is rest.
  StepAccount take();
  // The moment of the last take().
  std::int64_t taken_ns() const { return taken_ns_; }
  // Time since the start, with or without take(). On a GPU, of the settled steps, without rest.
  StepAccount so_far();
  // The host's time, also on a GPU.
  StepAccount take_host() { return host_.take(); }
  // Since the first call, without waits for other ranks: see OwnSeconds.
  double own_host_seconds() { return own_.seconds(); }
  // See OwnTime.
  double without_core_outside_compute() { return own_.without_core_outside_compute(); }
  double own_device_seconds() const { return own_device_seconds_; }

 private:
  std::int64_t enter(Phase phase);
  void begin_phase(Phase phase);
  void done(Phase phase, std::int64_t micro_batch);
  // Only on a CPU, while the timeline records.
  void record_span(const char* name, Track track, std::int64_t begin_ns, std::int64_t end_ns);
  // The CPU's work of the phase since it began or resumed.
  void record_piece(Phase phase, std::int64_t end_ns);
  std::optional<Phase> interrupt();
  void resume(std::optional<Phase> interrupted);
  void begin_wait(StepSlot slot, std::size_t bucket);
  void end_wait(StepSlot slot, std::size_t bucket);
  void end_update(StepSlot slot, std::size_t bucket);
  void close_ledger();

  Stream& stream_;
  Timeline* timeline_;
  Ledger* ledger_;
  ComputeMoments compute_;  // of a CPU's step under way, or of its exchange
  std::vector<BucketWait> waits_;
  bool exchange_deferred_ = false;
  std::optional<Phase> phase_;  // that time() runs
  std::int64_t begin_ns_ = 0;   // when the phase began or resumed
  PhaseClock host_;
  OwnTime own_;
  double own_device_seconds_ = 0;
  std::optional<StepTimes> times_;  // on a GPU
  StepSlot slot_;                   // of the step that began last
  std::int64_t step_ = 0;
  std::int64_t step_begin_ns_ = 0;  // on a CPU
  double fetch_seconds_ = 0;        // of the host, for the next step's batches
  StepAccount account_;             // of steps settled since the last take(), on a GPU
  StepAccount before_;              // of all earlier steps
  std::int64_t taken_ns_ = now_ns();
};

}  // namespace lockstep
