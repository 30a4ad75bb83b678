// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation over [N, H, W] for each channel (Ioffe and Szegedy, 2015), with an optional fused
// activation. Normalises with the biased variance of the batch; the running variance takes the unbiased one,
// as PyTorch does.
#pragma once

#include "core/stream.h"
#include "kernels/activation.h"
#include "kernels/affine.h"
#include "kernels/layout.h"

namespace lockstep {

struct BatchNormOptions {
  float epsilon = 1e-5f;
  float momentum = 0.1f;                     // running = (1 - momentum) * running + momentum * batch
  Activation activation = Activation::none;  // y = activation(normalised)
  float initial_scale = 1.0f;                // of gamma, where training starts
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

class BatchNormKernel {
 public:
  virtual ~BatchNormKernel() = default;

  // The layout of x, y and their gradients.
  const Layout& layout() const { return layout_; }
  // Memory that forward_training fills and backward reads: batch statistics, ReLU mask.
  std::size_t saved_bytes() const { return saved_bytes_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  // y may not alias x: backward reads x.
  virtual void forward_training(Stream& stream, const void* x, BatchNormParameters parameters,
                                BatchNormStatistics running, void* y, void* saved, void* scratch) = 0;
  // Normalises with the running statistics and leaves them alone.
  virtual void forward_evaluation(Stream& stream, const void* x, BatchNormParameters parameters,
                                  BatchNormStatistics running, void* y, void* scratch) = 0;
  // x_gradient may alias y_gradient. scale_gradient and shift_gradient are [C].
  virtual void backward(Stream& stream, const void* x, const void* y_gradient, BatchNormParameters parameters,
                        const void* saved, void* x_gradient, float* scale_gradient, float* shift_gradient,
                        Write write, void* scratch) = 0;

 protected:
  Layout layout_;
  std::size_t saved_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
