// SPDX-License-Identifier: Apache-2.0
//
// CrossBarrier: the exchange of a step's gradients continues during the next step's forward pass, with the
// same bits as a step that waits. Each bucket's parameters are updated when its sum is complete, before the
// first layer that reads one of them. So compute waits for a bucket only when it needs the bucket's
// parameters:
//
//   compute         backward of step t       |w0 layers of w0|w1 layers of w1| ..  |backward of step t + 1
//   communication    [ late layers ][ w0 ][ w1 ][ w2 ][ w3 ] ..
//
// Buckets are exchanged in the order in which forward needs them (comm/gradients/bucket_order.h), not in the
// order of backward. To find it, the first steps of a training wait for their gradients and are timed; rank
// 0's times give all ranks one order. A step's exchange completes before gradients are written again, or the
// state is read: at most one step is under way.
//
// A bucket's gradients are judged before its parameters are updated, but after the update of earlier buckets.
// So the values and running statistics before the step are kept until all buckets are judged, and restored if
// one is not finite. The optimizer's state is not restored: such a step ends the training.
//
// "Crossing the global barrier" is ByteScheduler's name for it (Peng et al., 2019).
#pragma once

#include <span>
#include <vector>

#include "comm/gradients/bucket_order.h"
#include "comm/gradients/buckets.h"
#include "core/step_slot.h"
#include "core/tensor/buffer.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/step_clock.h"
#include "launch/train/step/step_results.h"
#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

class CrossBarrier final : public ParameterGate {
 public:
  // All outlive this. Requires BucketOptions::one_by_one, and an optimizer made with the buckets'
  // bucket_gradients().
  CrossBarrier(Network& network, GradientBuckets& buckets, Optimizer& optimizer, StepClock& clock,
               StepResults& results);
  // Additional memory.
  static std::size_t planned_bytes(const MemoryPlan& network);

  // True for the first steps, which wait for their gradients and are timed.
  bool learns() const { return timed_ < kTimedSteps; }
  // Collective; call after each of them is settled and in the ledger.
  void learn(const Ledger& ledger, Communicator& host);
  // Times the next steps again, because threads or codecs have changed.
  void learn_again() { timed_ = 0; }

  // The calls of a step, in this order. This replaces Network::keep_statistics():
  void keep_statistics(Stream& compute);
  // The gate of the first forward pass; null if no step is under way.
  ParameterGate* gate() { return under_way_ ? this : nullptr; }
  void parameter_needed(std::size_t index) override;
  // Call after that pass, or to complete all enqueued work: enqueues the remaining buckets and the end of
  // their step. Does nothing if no step is under way.
  void finish();
  // Call after the backward pass that completes the gradients: defers the end of this slot's step to the next
  // step.
  void defer(Stream& compute, StepSlot slot);

 private:
  static constexpr int kTimedSteps = 3;  // the first allocates, and is not counted

  std::span<float> statistics() const {
    return {reinterpret_cast<float*>(statistics_.data()), network_.statistics().size()};
  }
  void update_next();

  Network& network_;
  GradientBuckets& buckets_;
  Optimizer& optimizer_;
  StepClock& clock_;
  StepResults& results_;
  std::vector<BucketTimes> times_;  // sums over the counted steps
  int timed_ = 0;

  bool under_way_ = false;
  Stream* compute_ = nullptr;  // of the step under way
  StepSlot slot_;              // of the step under way
  std::vector<bool> updated_;  // by bucket
  std::size_t next_ = 0;       // position in the order
  Buffer values_;              // parameters before the step under way, or the last one
  Buffer statistics_;          // running statistics after it
  bool statistics_kept_ = false;
};

}  // namespace lockstep
