// SPDX-License-Identifier: Apache-2.0
//
// StepEnd: what becomes of the gradients that a rank has computed. The Trainer runs the micro-batches of
// every step alike; when ranks exchange what they have, and what the optimizer takes, is one of five ways,
// each a file of this folder, of which the Trainer chooses one before the first step:
//
//   synchronous   gradients are averaged while backward goes on, waited for, and taken: the plain way
//   crossing      what is not averaged yet goes on beside the next step's forward pass (CrossBarrier)
//   late          they have a whole step to get there, and are taken one step late (DelayedGradients)
//   apart         each rank takes its own, and parameters are averaged every so many steps (LocalSgd)
//   ring          each rank takes its own, waits for nobody, and averages with its neighbours (Gossip)
//
// What is not overridden is what the plain way does. All calls come from the thread that trains.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/buckets.h"
#include "comm/communicator.h"
#include "core/state.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "launch/account/ledger.h"
#include "launch/account/step_clock.h"
#include "launch/step_kind.h"
#include "launch/step_recordings.h"
#include "launch/step_results.h"
#include "launch/step_statistics.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/weight_average.h"

namespace lockstep {

// Outlives the StepEnd.
struct StepEndParts {
  Network& network;
  GradientBuckets& buckets;
  Optimizer& optimizer;
  Communicator& communicator;
  StepStatistics* statistics;  // moved once a step; null: by each micro-batch, a rank's own
  Stream& stream;
  StepClock& clock;
  StepResults& results;
  StepRecordings& recordings;
  std::int64_t last_micro_batch;
  double clip_norm = 0;              // TrainerOptions::clip_norm
  WeightAverage* average = nullptr;  // moved by each step; null: there is none
};

// Of the step that is being enqueued.
struct StepPlace {
  std::int64_t step = 0;  // of the training, from 0
  // Where it finds its recording, batches, learning rate and moments, and leaves its results.
  StepSlot slot;
  bool stops_behind = false;  // no step follows at once
};

// What the host learned of a step that is over.
struct StepVerdict {
  std::int64_t step = 0;    // from 1, whose gradients were judged
  bool loss_finite = true;  // this rank's, in it
  bool counts = true;       // whether the losses of the step that is over are part of the epoch's
  float loss_scale = 1;     // that the gradients had, where they were skipped
};

// The first step that cannot be made good.
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
  // Whether the end of a step may be enqueued within the next: then none is recorded, and the host learns of
  // each one later.
  virtual bool crosses() const { return false; }
  // The step, from 0, that is the first to exchange something in a training from its beginning.
  virtual std::int64_t first_exchange() const { return 0; }
  // Whether all ranks stand at the same step whenever they are between two.
  virtual bool in_lockstep() const { return true; }
  // Whether a rank may skip a step that others take.
  virtual bool judges_alone() const { return false; }

  // Whether a step that is skipped leaves all that the next one depends on as it was, on every rank alike.
  virtual bool leaves_skipped_step_as_it_was() const { return false; }

  // An epoch whose next steps are those from `first` to `end`; collective.
  virtual void begin_epoch(std::int64_t, std::int64_t) {}
  // Before a step: where in the epoch it lies, for a rank that stands at this one; nothing behind the last.
  virtual std::optional<std::int64_t> next_step(std::int64_t stands_at, std::int64_t end) {
    if (stands_at < end) return stands_at;
    return std::nullopt;
  }
  // Not collective; where ranks are not in lockstep: no rank begins another step of this epoch.
  virtual void give_up_epoch() {}
  // Collective, where ranks are not in lockstep: behind the epoch's steps. Steps that each rank took of it.
  virtual std::vector<std::int64_t> end_epoch() { return {}; }

  // A step, in this order; what lies between begin_step() and end_step() may be recorded.
  virtual void begin_step(const StepPlace&) {}
  // Whether the step takes gradients at once, whose norm can be told.
  virtual bool has_norm() const { return true; }
  // Whether the buckets still hold the gradients that this step, from 0, took, when it is over and none
  // follows at once.
  virtual bool holds_gradients(std::int64_t) const { return true; }
  // Whether anything goes to other ranks in it.
  virtual bool exchanges(const StepPlace&) const { return true; }
  virtual void before_forward(const StepPlace&) { parts_.network.keep_statistics(parts_.stream); }
  // What the first forward pass waits for, parameter by parameter; null: nothing.
  virtual ParameterGate* gate() { return nullptr; }
  // Of the first micro-batch, before gradients are written again.
  virtual void behind_forward() {}
  // Whether full buckets leave while the last micro-batch's backward pass goes on.
  virtual bool buckets_leave(const StepPlace&) const { return true; }
  virtual void behind_backward(const StepPlace& place) = 0;
  virtual void end_step(const StepPlace& place) { parts_.results.enqueued(parts_.stream, place.slot); }

  // Whether its steps are timed, and learn() wants to know what the last one told.
  virtual bool learns() const { return false; }
  virtual void learn(const Ledger&) {}  // collective
  // Times may be others from now on.
  virtual void learn_again() {}

  // Enqueues what is left of steps that have been begun.
  virtual void finish() {}
  // Of the step of this number, from 1, with which the device is done. scale_before: the loss scale.
  virtual StepVerdict judge(std::int64_t number, const StepResult& result, float scale_before);
  // What ends the training, on all ranks alike. fatal: the step of the verdict cannot be made good.
  // Collective behind steps that ranks judged alone and then met.
  virtual std::optional<StepFailure> failure(const StepVerdict& verdict, bool fatal, StepSlot slot);

  // Collective, before an evaluation behind so many steps, of which none is under way: the network gets the
  // parameters that all ranks share until the next step begins. What ends the training in their place.
  virtual std::optional<StepFailure> show_evaluated(std::int64_t) { return std::nullopt; }
  // The same for whoever saves the state.
  virtual void show_saved(std::int64_t) {}
  // The same where this step, from 1, ended the training: whether it is the last average, and not the
  // parameters before the step.
  virtual bool show_last_average(std::int64_t) { return false; }
  // Steps that are over: what one of these leaves to the next. No step is under way.
  virtual void visit_state(StateVisitor&) {}

 protected:
  // The optimizer, unless a gradient is not finite.
  void update(const StepPlace& place);

  StepEndParts parts_;
};

}  // namespace lockstep
