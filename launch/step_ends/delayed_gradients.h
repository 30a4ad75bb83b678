// SPDX-License-Identifier: Apache-2.0
//
// DelayedGradients: each step's averaged gradients reach the optimizer one step late, and have a whole step
// to get there. At the end of a step the rank's gradients are copied to a second arena; there they are
// exchanged beside the forward and backward passes of the next step, whose optimizer then takes their sum:
//
//   parameters(t + 1) = optimizer(parameters(t), mean over ranks of the gradients of step t - 1)
//
// What momentum and the gradients under way do to the parameters until then is not small: gradients of the
// parameters as they are would bear a fraction of the learning rate. So each rank computes a step's gradients
// at the parameters where it expects them to be when they are taken: after an optimizer step with its own
// gradients in the place of the mean that is still under way. Nobody waits for that, and a rank alone is
// right to the bit. It is weight prediction as of pipelined training (Chen, Yang and Cheng, "Efficient and
// Robust Parallel DNN Training through Model Parallelism on Multi-GPU Platform", 2018: SpecTrain), which
// knows momentum alone. Running statistics are those of the predicted parameters.
//
// So between two steps nothing is on its way, and what waits in the second arena, not yet exchanged, is state
// of each rank. The first step moves no parameter, and the last one's gradients move none.
//
// fp16: gradients are judged, unscaled and skipped by the loss scale that they were made with. As it is known
// what became of it only two steps later, two scales take turns, those of even and of odd steps.
#pragma once

#include <cstdint>
#include <span>

#include "comm/buckets.h"
#include "core/buffer.h"
#include "core/state.h"
#include "core/stream.h"
#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

class DelayedGradients {
 public:
  // All outlive this; the buckets were made with BucketOptions::delayed.
  DelayedGradients(Network& network, GradientBuckets& buckets, Optimizer& optimizer, int ranks);
  // Of fp32 parameters of so many bytes, beside gradients.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return parameter_bytes; }

  // Whether there are gradients of a step before: not in the first one of a training.
  bool under_way() const { return under_way_ != 0; }

  // A step, in this order; all but end_step() may be recorded.
  // Where there are such gradients, before the first forward pass: starts their exchange. The optimizer's
  // step stands behind GradientBuckets::wait(), and between take_scale() and give_scale().
  void exchange(Stream& compute, std::span<BucketMoments> moments);
  // Then: the network gets the parameters that this step's optimizer is expected to leave; slot: of the step,
  // which says its learning rate. Where the rank's own gradients are not finite all ranks will skip them, and
  // the parameters stay. come_back(), behind the last backward pass, gives it back those it had.
  void look_ahead(Stream& compute, StepSlot slot);
  void come_back(Stream& compute);
  void take_scale(Stream& compute);
  void give_scale(Stream& compute);
  // Behind the last backward pass: what this rank's batch did to running statistics is taken back where its
  // own gradients are not finite. The step that skips them is the next one.
  void judge_statistics(Stream& compute);
  // Behind the optimizer: the step's gradients wait for the next one.
  void keep(Stream& compute);
  void end_step() { under_way_ = 1; }

  // Each rank's gradients that wait, in fp32, and their loss scale. No step is under way.
  void visit_state(StateVisitor& visitor, Stream& compute);

 private:
  StepControl* own() const { return reinterpret_cast<StepControl*>(control_.data()); }
  float* scale() const { return reinterpret_cast<float*>(control_.data() + sizeof(StepControl)); }
  void judge(Stream& compute);
  template <typename CastOf>
  void cast_ranges(Stream& compute, std::span<const FlatRange> ranges, const CastOf& cast_of);

  Network& network_;
  GradientBuckets& buckets_;
  Optimizer& optimizer_;
  int ranks_;
  Buffer values_;  // the parameters, while the network has others
  Buffer
      control_;  // of this rank's own gradients; behind it the scale of those that wait, and a place to swap
  std::int64_t under_way_ = 0;
};

}  // namespace lockstep
