// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix
// A.1): gradients of small batches vary more than those of large ones. Their squared norms give estimates of
// the squared norm of the true gradient and of the variance between samples. The ratio of the two is the
// critical batch: far below it, doubling the batch halves the steps; far above it, hardly saves any. It grows
// during training, so a measurement at the start is a lower bound for later.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// The mean of squared norms over several small batches, and the squared norm of the mean of them all.
struct NoiseSample {
  double small_square = 0;
  double large_square = 0;
  double small_batch = 1;
  double large_batch = 2;  // more than small_batch
};

class NoiseScale {
 public:
  void add(const NoiseSample& sample);

  std::int64_t samples() const { return samples_; }
  // Unbiased estimates, averaged over the samples: the squared norm of the true gradient, and the trace of
  // the covariance of a single sample's gradient.
  double gradient_square() const;
  double variance() const;
  // In samples of a global batch. Infinite if the gradient is not distinguishable from noise; 0 without
  // samples or variance.
  double critical_batch() const;

 private:
  std::int64_t samples_ = 0;
  double gradient_squares_ = 0;
  double variances_ = 0;
};

// Sums gradients of micro-batches, each the mean over its samples.
class MicroBatchGradients {
 public:
  explicit MicroBatchGradients(std::int64_t elements) : sum_(static_cast<std::size_t>(elements)) {}

  // The next tensor of the micro-batch, always in the same order.
  void add(std::span<const float> gradient);
  void end_micro_batch();

  std::int64_t micro_batches() const { return micro_batches_; }
  // Sum of squares over all elements of all micro-batches.
  double squares() const { return squares_; }
  // Sums by element; the caller may add those of other ranks.
  std::vector<float>& values() { return sum_; }
  double square_of_sum() const;

 private:
  std::vector<float> sum_;
  std::size_t place_ = 0;
  double squares_ = 0;
  std::int64_t micro_batches_ = 0;
};

}  // namespace lockstep
