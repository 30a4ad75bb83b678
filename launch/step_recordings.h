// SPDX-License-Identifier: Apache-2.0
//
// StepRecordings: how the work of a step gets onto the stream. On a GPU a step of each kind, in each slot, is
// recorded once and then replayed as a whole; elsewhere, and where a rank cannot record it, it is enqueued
// anew in each step. All ranks do alike. Here too is when they look whether all of them call the same
// collectives: a plan is new where it is enqueued for the first time, and where it is recorded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "launch/step_kind.h"

namespace lockstep {

class StepRecordings {
 public:
  // All outlive this. communicators: that a step uses; the first one is asked what all ranks can do.
  StepRecordings(Stream& stream, std::vector<Communicator*> communicators);

  std::span<Communicator* const> communicators() const { return communicators_; }
  bool records() const { return records_; }

  // First of all. records: whether steps are; the same on every rank. first_exchange: the step, from
  // 0, that is the first to exchange something.
  void begin(bool records, std::int64_t first_exchange);
  // What was recorded is of memory that is no more.
  void forget() { recordings_ = {}; }
  // Steps are as new as the first ones. warmup_steps: those that exchange gradients in another way than all
  // that follow.
  void restart(std::int64_t warmup_steps);

  // Enqueues the step by this call, which may be recorded, or replays what it once enqueued. observed:
  // whether it takes moments of its buckets; such steps are recorded apart.
  void run(StepKind kind, StepSlot slot, bool observed, const std::function<void()>& enqueue);

  // Collective, within such a call: where the communicators are told to look for ranks that call other
  // collectives. Before the sums of the step are used.
  void check_calls();

 private:
  struct Recorded {
    Recording work;
    std::vector<RecordedCollectives> collectives;  // of each of communicators_
  };

  // Of the step that comes next; empty, on every rank, where one of them cannot record it.
  Recorded record(const std::function<void()>& enqueue);
  // Collective. The same of a step that is replayed, while the device runs it.
  void check_replayed_calls() const;
  std::int64_t& enqueued() { return enqueued_[static_cast<std::size_t>(kind_)]; }

  Stream& stream_;
  std::vector<Communicator*> communicators_;
  bool records_ = false;
  std::int64_t first_exchange_ = 0;
  std::int64_t first_recorded_ = 0;        // of enqueued_
  StepKind kind_ = StepKind::synchronous;  // of the step that is being enqueued
  std::array<std::array<std::array<Recorded, StepSlot::kCount>, kStepKinds>, 2>
      recordings_;                                      // first: observed
  std::array<std::int64_t, kStepKinds> enqueued_ = {};  // of each kind, by this process, with these codecs
};

}  // namespace lockstep
