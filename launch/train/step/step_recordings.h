// SPDX-License-Identifier: Apache-2.0
//
// StepRecordings: enqueues the work of steps. On a GPU a step of each kind, in each slot, is recorded once
// and then replayed as a whole; elsewhere, and if a rank cannot record it, each step is enqueued again. All
// ranks do the same. It also decides when ranks compare which collectives they call: a plan is new when it is
// first enqueued, and when it is recorded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "launch/train/step/step_kind.h"

namespace lockstep {

class StepRecordings {
 public:
  // All outlive this. communicators: those that a step uses; ranks agree over the first one.
  StepRecordings(Stream& stream, std::vector<Communicator*> communicators);

  std::span<Communicator* const> communicators() const { return communicators_; }
  bool records() const { return records_; }

  // Call first; the same on every rank. records: whether steps are recorded. enqueue_every: one step in this
  // many is enqueued and not replayed, so that a profiler sees its ranges; 0: none. first_exchange: the
  // first step, from 0, that exchanges something.
  void begin(bool records, std::int64_t enqueue_every, std::int64_t first_exchange);
  // Discards the recordings, because memory that they use is freed.
  void forget() { recordings_ = {}; }
  // Discards the recordings and counts steps from 0 again. warmup_steps: the first steps, whose exchange
  // differs from that of all later ones.
  void restart(std::int64_t warmup_steps);

  // Enqueues the step by calling `enqueue`, which may be recorded, or replays an earlier recording.
  void run(StepKind kind, StepSlot slot, StepDetail detail, const std::function<void()>& enqueue);

  // Collective; called within `enqueue`, before the sums of the step are used. Ranks compare which
  // collectives they call, as CallCheck demands.
  void check_calls();

 private:
  struct Recorded {
    Recording work;
    std::vector<RecordedCollectives> collectives;  // by communicator
  };

  // Records the next step; empty, on all ranks, if one of them cannot record it.
  Recorded record(const std::function<void()>& enqueue);
  // Collective. new_plan: the step is the first of its plan.
  void compare_calls(bool new_plan) const;
  // Collective. check_calls() for a replayed step, while the device runs it.
  void check_replayed_calls() const;
  // True if the step that is being enqueued is recorded or replayed; within `enqueue`: recorded.
  bool records_now() const;
  std::int64_t& enqueued() { return enqueued_[static_cast<std::size_t>(kind_)]; }

  Stream& stream_;
  std::vector<Communicator*> communicators_;
  bool records_ = false;
  bool check_due_ = false;  // check_calls() was called while recording
  std::int64_t enqueue_every_ = 0;
  std::int64_t first_exchange_ = 0;
  std::int64_t first_recorded_ = 0;        // value of enqueued() from which steps are recorded
  StepKind kind_ = StepKind::synchronous;  // of the step that is being enqueued
  std::array<std::array<std::array<Recorded, StepSlot::kCount>, kStepKinds>, kStepDetails>
      recordings_;                                      // by detail, kind and slot
  std::array<std::int64_t, kStepKinds> enqueued_ = {};  // steps of each kind since restart()
  std::array<bool, kStepKinds> logged_ = {};            // that steps of each kind are recorded
};

}  // namespace lockstep
