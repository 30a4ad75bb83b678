// SPDX-License-Identifier: Apache-2.0
//
// CrossBarrier: the exchange of a step's gradients goes on beside the next step's forward pass, with the bits
// of a step that waits. Each bucket's parameters are updated when its sum is there, before the first layer
// that reads one of them; so compute waits for a bucket only where nothing can go on without it:
//
//   compute         backward of step t       |w0 layers of w0|w1 layers of w1| ..  |backward of step t + 1
//   communication    [ late layers ][ w0 ][ w1 ][ w2 ][ w3 ] ..
//
// There buckets leave as forward needs them (comm/bucket_order.h), and not as backward makes them: for that
// the first steps of a training, which wait for their gradients as all others do, are timed, and rank 0's
// times give all ranks one order. Everything of a step that is exchanged is done before gradients are written
// again, or whoever asks for the state sees it: one step at most is under way.
//
// A bucket's gradients are judged before its parameters are updated, when others have been updated already.
// So what values and running statistics were before the step is kept until all buckets are judged, and
// brought back where one is not finite. The optimizer's state is not: that ends the training.
//
// "Crossing the global barrier" is ByteScheduler's name for it (Peng et al., 2019).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/bucket_order.h"
#include "comm/buckets.h"
#include "core/buffer.h"
#include "core/step_slot.h"
#include "launch/account/ledger.h"
#include "launch/account/step_clock.h"
#include "launch/step_results.h"
#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

class CrossBarrier final : public ParameterGate {
 public:
  // All outlive this. The buckets were made with BucketOptions::one_by_one, and the optimizer of their
  // bucket_gradients().
  CrossBarrier(Network& network, GradientBuckets& buckets, Optimizer& optimizer, StepClock& clock,
               StepResults& results);
  // Of memory, beside what a step has anyway.
  static std::size_t planned_bytes(const MemoryPlan& network);

  // Whether steps are timed, and wait for their gradients: the first ones.
  bool learns() const { return timed_ < kTimedSteps; }
  // Collective. The last of them is settled, and the ledger has it.
  void learn(const Ledger& ledger, Communicator& host);
  // Times may be others from now on: of threads, of codecs.
  void learn_again() { timed_ = 0; }

  // A step, in this order. In place of Network::keep_statistics():
  void keep_statistics(Stream& compute);
  // What the first forward pass is told; null where nothing is under way.
  ParameterGate* gate() { return under_way_ ? this : nullptr; }
  void parameter_needed(std::size_t index) override;
  // Behind that pass, or whenever all that was enqueued is to be done: the buckets that are left, and the end
  // of their step. Nothing where nothing is under way.
  void finish();
  // Behind the backward pass that finishes gradients: the step of this slot is left to the next.
  void leave(Stream& compute, StepSlot slot);

 private:
  static constexpr int kTimedSteps = 3;  // the first of them allocates, and is not counted

  std::span<float> statistics() const {
    return {reinterpret_cast<float*>(statistics_.data()), network_.statistics().size()};
  }
  void update_next();
  void settle_statistics();

  Network& network_;
  GradientBuckets& buckets_;
  Optimizer& optimizer_;
  StepClock& clock_;
  StepResults& results_;
  std::vector<BucketTimes> times_;  // sums of the steps that count
  int timed_ = 0;

  bool under_way_ = false;
  Stream* compute_ = nullptr;  // of the step that is
  StepSlot slot_;              // its
  std::vector<bool> updated_;  // by bucket
  std::size_t next_ = 0;       // of the order
  Buffer values_;              // before the step that is under way, or was last
  Buffer statistics_;          // behind it
  bool statistics_kept_ = false;
};

}  // namespace lockstep
