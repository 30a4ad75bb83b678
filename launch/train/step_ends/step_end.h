// SPDX-License-Identifier: Apache-2.0
//
// StepEnd: how a step uses the gradients that a rank has computed. The Trainer runs the micro-batches of
// every step alike. A StepEnd determines what ranks exchange, when, and what the optimizer applies. There are
// six, each in a file of this folder; the Trainer chooses one before the first step:
//
//   synchronous   gradients are summed during backward; the step waits for them and applies them
//   sharded       each rank updates a share of the parameters and sends it to all ranks (comm.exchange)
//   crossing      the remaining exchange overlaps the next step's forward pass (CrossBarrier)
//   late          gradients are exchanged during the next step, and applied one step late (DelayedGradients)
//   apart         each rank applies its own; ranks average parameters every few steps (LocalSgd)
//   ring          each rank applies its own, and averages with its neighbours without waiting (Gossip)
//
// StepEndTraits holds the properties of each; the virtual functions of StepEnd do its work. Their default
// implementations are those of the synchronous one. The training thread makes all calls.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "comm/gradients/buckets.h"
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

class SharedSteps;

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

// The properties of a way to end a step, the same for all of its steps.
struct StepEndTraits {
  // The end of a step may be enqueued within the next one: then steps are not recorded, and the host reads
  // each result one step later.
  bool crosses = false;
  // A rank may skip a step that other ranks take.
  bool judges_alone = false;
  // A skipped step restores, on every rank alike, all state that the next step depends on.
  bool skip_restores_state = false;
  // After a step, the buckets hold the gradients that it applied, unless it averages parameters: that
  // overwrites them.
  bool keeps_gradients = true;
  // The first step, from 0, that exchanges something in a training from its beginning.
  std::int64_t first_exchange = 0;
  // The default: all steps are synchronous.
  LocalSgdOptions kinds{.after = LocalSgdOptions::kNever};
};

// The step that is being enqueued.
struct StepPlace {
  std::int64_t step = 0;  // number in the training, from 0
  // Selects its recording, batches, learning rate, event times and results.
  StepSlot slot;
  bool before_pause = false;      // an evaluation or the end of the epoch follows
  bool exchange_changed = false;  // since the last step: other codecs, or a state was restored
};

// Describes the step that begins.
struct StepPlan {
  bool exchanges = true;              // exchanges something with other ranks
  bool sends_during_backward = true;  // full buckets, in the last micro-batch
  bool has_norm = true;               // applies its own gradients, so that their norm is known
  bool learns = false;                // is timed for learn()
  ParameterGate* gate = nullptr;      // the first forward pass waits here for each parameter; null: none
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

// The purpose for which ranks share parameters.
enum class StateUse {
  evaluation,
  checkpoint,
  last_good,  // the last average is saved, because a local or averaging step ended the training
};

class StepEnd {
 public:
  StepEnd(const StepEndParts& parts, const StepEndTraits& traits) : parts_(parts), traits_(traits) {}
  virtual ~StepEnd() = default;
  StepEnd(const StepEnd&) = delete;
  StepEnd& operator=(const StepEnd&) = delete;

  const StepEndTraits& traits() const { return traits_; }
  // step: its number in the training, from 0.
  StepKind kind_of(std::int64_t step) const { return traits_.kinds.kind_of(step); }
  // True if the buckets hold the gradients that this step applied, after it and before the next one.
  bool holds_gradients(std::int64_t step) const {
    return traits_.keeps_gradients && kind_of(step) != StepKind::averaging;
  }

  // An epoch: the counter from which each rank takes steps; null: all ranks are at the same step between
  // steps.
  virtual SharedSteps* shared_steps() { return nullptr; }

  // A step: the calls, in this order. before_forward() and after_backward() may be recorded.
  virtual StepPlan begin_step(const StepPlace& place);
  virtual void before_forward(const StepPlace&) { parts_.network.keep_statistics(parts_.stream); }
  virtual void after_backward(const StepPlace& place) = 0;
  virtual void end_step(const StepPlace& place) { parts_.results.enqueued(parts_.stream, place.slot); }
  // Enqueues the rest of the step before, if its end was deferred. Also called after each forward pass,
  // before backward writes gradients again.
  virtual void finish() {}
  // Collective; called after a step that learns, when it is settled and in the ledger.
  virtual void learn(const Ledger&) {}

  // A result: judges the step of this number, from 1, which the device has completed. scale_before: the loss
  // scale before it.
  virtual StepVerdict judge(std::int64_t number, const StepResult& result, float scale_before);
  // The failure that ends the training, on all ranks alike; nullopt: none. fatal: the verdict's step ends
  // this rank's training. Where ranks judge alone, collective after steps at which they wait for each other.
  virtual std::optional<StepFailure> failure(const StepVerdict& verdict, bool fatal, StepSlot slot);

  // The state, with no step under way. Collective; called after this number of steps. Gives the network the
  // parameters that all ranks share, until the next step begins. It may return a failure that ends the
  // training instead.
  virtual std::optional<StepFailure> share_state(StateUse, std::int64_t) { return std::nullopt; }
  // Gives the network this rank's own parameters again, before a visitor writes. Waits until the network has
  // them, because the visitor uses another stream.
  virtual void keep_own_parameters() {}
  // Visits this object's state.
  virtual void visit_state(StateVisitor&) {}

 protected:
  // Runs the optimizer, unless a gradient is not finite.
  void update(const StepPlace& place);
  virtual void run_optimizer(const StepPlace& place) { parts_.optimizer.step(parts_.stream, place.slot); }

  StepEndParts parts_;

 private:
  StepEndTraits traits_;
};

}  // namespace lockstep
