// SPDX-License-Identifier: Apache-2.0
//
// DelayedGradients: each step's averaged gradients reach the optimizer one step late, and are exchanged
// during a whole step. At the end of a step the rank's gradients are copied to a second arena. There they are
// exchanged during the forward and backward passes of the next step, whose optimizer applies their mean:
//
//   parameters(t + 1) = optimizer(parameters(t), mean over ranks of the gradients of step t - 1)
//
// Momentum and the gradients under way change the parameters noticeably until then: with gradients at the
// current parameters, only a fraction of the learning rate would be stable. So each rank computes a step's
// gradients at the parameters that it expects when they are applied: after an optimizer step with its own
// gradients in place of the mean under way. This needs no communication, and is exact for a single rank. It
// is weight prediction as in pipelined training (Chen, Yang and Cheng, "Efficient and Robust Parallel DNN
// Training through Model Parallelism on Multi-GPU Platform", 2018: SpecTrain), which predicts from momentum
// alone. Running statistics are those of the predicted parameters.
//
// Between steps no exchange is under way: the gradients in the second arena, not yet exchanged, are state of
// each rank. The first step changes no parameter, and the last step's gradients are not used.
//
// fp16: gradients are judged, unscaled and skipped by the loss scale that they were made with. The result of
// a scale is known only two steps later, so two scales alternate, for even and for odd steps. Each counts its
// own good steps: with a common count over an even interval, only one of them would ever grow.
#pragma once

#include <cstdint>
#include <span>

#include "comm/gradients/buckets.h"
#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

class DelayedGradients {
 public:
  // Names of its state: the end of the names of the gradients, whether there are any, their loss scale, and
  // the good steps of that scale.
  static constexpr const char* kGradientSuffix = ".gradient_under_way";
  static constexpr const char* kUnderWay = "train.gradients_under_way";
  static constexpr const char* kLossScale = "train.loss_scale_under_way";
  static constexpr const char* kGoodSteps = "train.good_steps_under_way";

  // All outlive this. Requires BucketOptions::delayed.
  DelayedGradients(Network& network, GradientBuckets& buckets, Optimizer& optimizer, int ranks);
  // Memory for this size of fp32 parameters, without gradients.
  static std::size_t planned_bytes(std::size_t parameter_bytes) { return parameter_bytes; }

  // True if gradients of an earlier step wait: not in the first step of a training.
  bool under_way() const { return under_way_ != 0; }

  // The calls of a step, in this order; all but end_step() may be recorded.
  // If under_way(), before the first forward pass: starts the exchange of the gradients that wait. Call the
  // optimizer's step after GradientBuckets::wait(), between use_late_scale() and keep_new_scale().
  void exchange(Stream& compute, std::span<BucketMoments> moments);
  // Then: sets the network to the parameters expected after this step's optimizer. slot: the step's, for its
  // learning rate. If this rank's own gradients are not finite, all ranks will skip them, and the parameters
  // stay. restore_parameters(), after the last backward pass, restores the parameters.
  void look_ahead(Stream& compute, StepSlot slot);
  void restore_parameters(Stream& compute);
  void use_late_scale(Stream& compute);
  void keep_new_scale(Stream& compute);
  // After the last backward pass: restores running statistics from before the step if this rank's own
  // gradients are not finite. The next step skips them.
  void judge_statistics(Stream& compute);
  // After the optimizer: copies the step's gradients to the second arena.
  void keep(Stream& compute);
  void end_step() { under_way_ = 1; }
  // True if this rank's own gradients that wait are finite, or none wait. Waits for the stream.
  bool are_finite(Stream& compute) const;
  // Loss scale of the gradients that wait. Waits for the stream.
  float read_scale(Stream& compute) const;

  // Visits each rank's waiting gradients, in fp32 and times their loss scale, that scale and its good steps.
  // No step is under way. After a visitor that writes NaN as the scale, and so gradients without one, they
  // get the optimizer's, which is restored before. After one without this state, no gradients wait;
  // checkpoints of earlier versions have no good steps.
  void visit_state(StateVisitor& visitor, Stream& compute);

 private:
  StepControl* own() const { return reinterpret_cast<StepControl*>(control_.data()); }
  // Two values each: of the gradients that wait, and the optimizer's during use_late_scale().
  float* scale() const { return reinterpret_cast<float*>(control_.data() + sizeof(StepControl)); }
  std::int32_t* good_steps() const { return reinterpret_cast<std::int32_t*>(scale() + 2); }
  void judge(Stream& compute);

  Network& network_;
  GradientBuckets& buckets_;
  Optimizer& optimizer_;
  int ranks_;
  Buffer values_;   // the parameters, while the network has predicted ones; in visit_state() the gradients
  Buffer control_;  // for this rank's own gradients; then scale() and good_steps()
  std::int64_t under_way_ = 0;
};

}  // namespace lockstep
