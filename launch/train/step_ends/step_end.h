// SPDX-License-Identifier: Apache-2.0
//
// StepEnd: how a step uses the gradients that a rank has computed. The Trainer runs the micro-batches of
// every step alike. What ranks exchange, when, and what the optimizer takes is one of five ways, each a file
// of this folder. The Trainer chooses one before the first step:
//
//   synchronous   gradients are averaged during backward, waited for, and taken
//   crossing      the rest of the exchange overlaps the next step's forward pass (CrossBarrier)
//   late          gradients are exchanged during the next step, and taken one step late (DelayedGradients)
//   apart         each rank takes its own; parameters are averaged every few steps (LocalSgd)
//   ring          each rank takes its own, and averages with its neighbours without waiting (Gossip)
//
// The defaults are those of the synchronous way. The training thread makes all calls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/buckets.h"
#include "comm/communicator.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/step_clock.h"
#include "launch/train/step/step_kind.h"
#include "launch/train/step/step_recordings.h"
#include "launch/train/step/step_results.h"
#include "launch/train/step/step_statistics.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/weight_average.h"

namespace lockstep {

// References must outlive the StepEnd.
struct StepEndParts {
  Network& network;
  GradientBuckets& buckets;
  Optimizer& optimizer;
  Communicator& communicator;
  StepStatistics* statistics;  // updated once per step; null: each micro-batch updates its own rank's
  Stream& stream;
  StepClock& clock;
  StepResults& results;
  StepRecordings& recordings;
  std::int64_t last_micro_batch;
  double clip_norm = 0;              // TrainerOptions::clip_norm
  WeightAverage* average = nullptr;  // updated by each step; null: no EMA
};

// The step that is being enqueued.
struct StepPlace {
  std::int64_t step = 0;  // number in the training, from 0
  // Selects its recording, batches, learning rate, event times and results.
  StepSlot slot;
  bool stops_behind = false;  // an evaluation or the end of the epoch follows
};

// The verdict on a completed step.
struct StepVerdict {
  std::int64_t step = 0;    // number, from 1, of the step whose gradients were judged
  bool loss_finite = true;  // this rank's, in it
  bool counts = true;       // the completed step's losses are part of the epoch's
  float loss_scale = 1;     // of the gradients, if they were skipped
};

// The first step whose gradients end the training.
struct StepFailure {
  std::int64_t step = 0;    // from 1
  bool loss_finite = true;  // this rank's, in it
};

class StepEnd {
 public:
  explicit StepEnd(const StepEndParts& parts) : parts_(parts) {}
  virtual ~StepEnd() = default;
  StepEnd(const StepEnd&) = delete;
  StepEnd& operator=(const StepEnd&) = delete;

  virtual StepKind kind_of(std::int64_t) const { return StepKind::synchronous; }
  // True if the end of a step may be enqueued within the next one: then steps are not recorded, and the host
  // reads each result one step later.
  virtual bool crosses() const { return false; }
  // The first step, from 0, that exchanges something in a training from its beginning.
  virtual std::int64_t first_exchange() const { return 0; }
  // True if all ranks are at the same step between steps.
  virtual bool in_lockstep() const { return true; }
  // True if a rank may skip a step that other ranks take.
  virtual bool judges_alone() const { return false; }

  // True if a skipped step restores, on every rank alike, all state that the next step depends on.
  virtual bool skip_restores_state() const { return false; }

  // Collective; begins the epoch's steps from `first` to `end` (exclusive).
  virtual void begin_epoch(std::int64_t, std::int64_t) {}
  // Before a step: its number in the epoch, for a rank at step `stands_at`; nullopt after the last one.
  virtual std::optional<std::int64_t> next_step(std::int64_t stands_at, std::int64_t end) {
    if (stands_at < end) return stands_at;
    return std::nullopt;
  }
  // Not collective; if ranks are not in lockstep: no rank begins another step of this epoch.
  virtual void give_up_epoch() {}
  // Collective, if ranks are not in lockstep; called after the epoch's steps. Returns each rank's steps in
  // the epoch.
  virtual std::vector<std::int64_t> end_epoch() { return {}; }

  // The calls of a step, in this order. Those between begin_step() and end_step() may be recorded.
  virtual void begin_step(const StepPlace&) {}
  // True if the step takes its own gradients at once, so that their norm is known.
  virtual bool has_norm() const { return true; }
  // True if the buckets still hold the gradients that this step, from 0, took, when it has ended and no step
  // has followed.
  virtual bool holds_gradients(std::int64_t) const { return true; }
  // True if the step exchanges something with other ranks.
  virtual bool exchanges(const StepPlace&) const { return true; }
  virtual void before_forward(const StepPlace&) { parts_.network.keep_statistics(parts_.stream); }
  // The gate at which the first forward pass waits for each parameter; null: none.
  virtual ParameterGate* gate() { return nullptr; }
  // Called after each forward pass, before backward writes gradients again.
  virtual void behind_forward() {}
  // True if full buckets leave during the last micro-batch's backward pass.
  virtual bool buckets_leave(const StepPlace&) const { return true; }
  virtual void behind_backward(const StepPlace& place) = 0;
  virtual void end_step(const StepPlace& place) { parts_.results.enqueued(parts_.stream, place.slot); }

  // True if the step that ended was timed for learn().
  virtual bool learns() const { return false; }
  virtual void learn(const Ledger&) {}  // collective
  // Discards the times that learn() has collected, because later steps may differ.
  virtual void learn_again() {}

  // Enqueues the rest of the steps that have begun.
  virtual void finish() {}
  // Judges the step of this number, from 1, which the device has completed. scale_before: the loss scale
  // before it.
  virtual StepVerdict judge(std::int64_t number, const StepResult& result, float scale_before);
  // The failure that ends the training, on all ranks alike; nullopt: none. fatal: the verdict's step ends
  // this rank's training. Collective after steps that ranks judged alone and then met.
  virtual std::optional<StepFailure> failure(const StepVerdict& verdict, bool fatal, StepSlot slot);

  // Collective; called before an evaluation after this number of steps, with no step under way. Gives the
  // network the parameters that all ranks share, until the next step begins. Returns a failure that ends the
  // training instead.
  virtual std::optional<StepFailure> show_evaluated(std::int64_t) { return std::nullopt; }
  // The same before the state is saved.
  virtual void show_saved(std::int64_t) {}
  // The same after this step, from 1, ended the training. True: the network holds the last average instead of
  // the parameters before the step.
  virtual bool show_last_average(std::int64_t) { return false; }
  // Visits what a step leaves to the next one. No step is under way.
  virtual void visit_state(StateVisitor&) {}

 protected:
  // Runs the optimizer, unless a gradient is not finite.
  void update(const StepPlace& place);

  StepEndParts parts_;
};

}  // namespace lockstep
