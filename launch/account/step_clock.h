// SPDX-License-Identifier: Apache-2.0
//
// StepClock: where the time of steps goes, their spans in a timeline, and the moments of a ledger. What a CPU
// does the host's clock times as it is done; of what a GPU does StepTimes takes the moments, and tells when
// the step is settled.
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
#include "launch/account/ledger.h"
#include "launch/account/own_time.h"
#include "launch/account/step_times.h"

namespace lockstep {

// What a timeline and NVIDIA's profilers call it: a literal.
const char* span_name(Phase phase);

class StepClock {
 public:
  // The stream computes and outlives this. buckets: of gradients. timeline and ledger may be null.
  StepClock(Stream& stream, std::int64_t micro_batches, std::size_t buckets, Timeline* timeline,
            Ledger* ledger = nullptr);

  // A step, in this order; step: its number, from 0. First it waits for its batches. observed: whether a GPU
  // takes moments of its buckets, for timeline and ledger.
  void begin(StepSlot slot, std::int64_t step, bool observed);
  // Buckets stay where they are in this step.
  void without_exchange() {
    if (times_) times_->without_exchange(slot_);
  }
  void has_data();
  // What the work enqueues, or a CPU does, and all that follows it until the next of these calls, is time of
  // the phase: data_wait, forward, backward, exposed_communication or optimizer. May be recorded.
  template <typename Work>
  void time(Phase phase, std::int64_t micro_batch, Work work) {
    begin_phase(phase);
    const ProfilerRange range(span_name(phase));
    work();
    done(phase, micro_batch);
  }
  // The exchange of the step goes on when the step has ended: until then in steps with
  // before_bucket(), for each bucket once, and exchange_ended().
  void exchange_goes_on();
  // Interrupts what time() runs, if it does. `wait` is time of exposed_communication, then `update` of the
  // optimizer. slot: of the step whose gradients they are.
  template <typename Wait, typename Update>
  void before_bucket(StepSlot slot, std::size_t bucket, Wait wait, Update update) {
    const std::optional<Phase> interrupted = interrupt();
    begin_wait(slot, bucket);
    wait();
    end_wait(slot, bucket);
    update();
    end_update(slot, bucket);
    go_on(interrupted);
  }
  void exchange_ended();
  // Where a GPU takes the moments of the step's buckets; empty on a CPU, and where it takes none.
  std::span<BucketMoments> buckets();
  void end();
  // The host fetches the batches of the next step; waits for steps of a GPU; does something else.
  void fetch(const std::function<void()>& work);
  void wait_for_device() { enter(times_ ? Phase::device_wait : Phase::rest); }
  // Behind all that is of the step.
  void rest();

  // The device is done with the slot's step; see StepTimes::account.
  void settle(StepSlot slot);
  // What a GPU does until the next step begins is no step's.
  void restart();
  // Where the time since the last call went; adds up to the wall time. On a CPU the host's time; on a GPU the
  // device's, of the steps that were settled meanwhile, with what no step took as rest.
  StepAccount take();
  // Since the start, whatever was taken; on a GPU of the steps that were settled, without any rest.
  StepAccount so_far();
  // On a GPU, too, the host's.
  StepAccount take_host() { return host_.take(); }
  // Of steps since the first call, without waits for other ranks: see OwnSeconds.
  double own_host_seconds() { return own_.seconds(); }
  // See OwnTime.
  double waits_without_core() { return own_.waits_without_core(); }
  double own_device_seconds() const { return own_device_seconds_; }

 private:
  void enter(Phase phase);
  void begin_phase(Phase phase);
  void done(Phase phase, std::int64_t micro_batch);
  // Of a CPU's step, while the timeline records.
  void record_span(const char* name, Track track, std::int64_t begin_ns, std::int64_t end_ns);
  // What a CPU did of the phase since it began, or went on.
  void record_piece(Phase phase, std::int64_t end_ns);
  std::optional<Phase> interrupt();
  void go_on(std::optional<Phase> interrupted);
  void begin_wait(StepSlot slot, std::size_t bucket);
  void end_wait(StepSlot slot, std::size_t bucket);
  void end_update(StepSlot slot, std::size_t bucket);
  void close_ledger();

  Stream& stream_;
  Timeline* timeline_;
  Ledger* ledger_;
  ComputeMoments compute_;  // of a CPU's step under way, or of its exchange
  std::vector<BucketWait> waits_;
  bool exchange_goes_on_ = false;
  std::optional<Phase> phase_;  // that time() runs
  std::int64_t begin_ns_ = 0;   // on a CPU: when it began, or went on
  PhaseClock host_;
  OwnTime own_;
  double own_device_seconds_ = 0;
  std::optional<StepTimes> times_;  // on a GPU
  StepSlot slot_;                   // of the step that began last
  std::int64_t step_ = 0;
  std::int64_t step_begin_ns_ = 0;  // on a CPU
  double fetch_seconds_ = 0;        // of the host, for the next step's batches
  StepAccount account_;             // of the steps settled since it was taken, on a GPU
  StepAccount before_;              // of those before them
  std::int64_t taken_ns_ = now_ns();
};

}  // namespace lockstep
