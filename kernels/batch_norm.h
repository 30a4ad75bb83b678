// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation over [N, H, W] for each channel (Ioffe and Szegedy, 2015), optionally fused with the
// addition of a residual and an activation in the same passes over memory:
//   y = activation((x - mean) / sqrt(variance + epsilon) * scale + shift (+ residual))
// It normalises with the biased variance of the batch; the running variance takes the unbiased one, as
// PyTorch does.
#pragma once

#include "core/stream.h"
#include "core/tensor/layout.h"
#include "core/tensor/parameter.h"
#include "kernels/activation.h"
#include "kernels/rank_gather.h"

namespace lockstep {

struct BatchNormOptions {
  float epsilon = 1e-5f;
  float momentum = 0.1f;  // running = (1 - momentum) * running + momentum * batch
  Activation activation = Activation::none;
  bool residual = false;       // a second input is added before the activation
  float initial_scale = 1.0f;  // of gamma, at the start of training
  // Training also normalises with the running statistics and does not update them; backward then computes
  // only the gradients of the inputs.
  bool frozen = false;
  // Number of ranks whose batches, all of one size, are normalised together in training (synchronised batch
  // norm). Moments, and in backward the sums they depend on, are gathered and added along the tree over
  // ranks, in fp64.
  int ranks = 1;
};

// Per channel; each [C], fp32.
struct BatchNormParameters {
  const float* scale = nullptr;  // gamma
  const float* shift = nullptr;  // beta
};
struct BatchNormStatistics {
  float* mean = nullptr;
  float* variance = nullptr;
};

// Tensors have the kernel's layout(). residual and residual_gradient are null if and only if there is no
// residual.
struct BatchNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;
  BatchNormParameters parameters;
  BatchNormStatistics running;
  bool update_running = true;    // training only; false when a forward is repeated
  RankGather* across = nullptr;  // training only; of BatchNormOptions::ranks ranks; null for one rank
  void* y = nullptr;             // must not be x, which backward reads; may be the residual
  void* saved = nullptr;         // training only
  void* scratch = nullptr;
};
struct BatchNormBackward {
  const void* x = nullptr;
  const void* y_gradient = nullptr;
  BatchNormParameters parameters;
  const void* saved = nullptr;
  void* x_gradient = nullptr;         // may be y_gradient without a residual
  void* residual_gradient = nullptr;  // may be y_gradient
  float* scale_gradient = nullptr;    // [C]; not read where frozen
  float* shift_gradient = nullptr;    // [C]; not read where frozen
  Write write = Write::overwrite;     // for scale and shift gradients, which are this rank's
  RankGather* across = nullptr;       // as in forward
  void* scratch = nullptr;
};

class BatchNormKernel {
 public:
  virtual ~BatchNormKernel() = default;

  // The layout of x, y, the residual and their gradients.
  const Layout& layout() const { return layout_; }
  // Memory that forward_training writes and backward reads: batch statistics and, with a residual and an
  // activation, a flag per element for which the activation passes its input.
  std::size_t saved_bytes() const { return saved_bytes_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  virtual void forward_training(Stream& stream, const BatchNormForward& arguments) = 0;
  // Normalises with the running statistics and does not update them.
  virtual void forward_evaluation(Stream& stream, const BatchNormForward& arguments) = 0;
  virtual void backward(Stream& stream, const BatchNormBackward& arguments) = 0;

 protected:
  Layout layout_;
  std::size_t saved_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
