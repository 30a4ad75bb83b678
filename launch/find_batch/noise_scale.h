// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix
// A.1): gradients of small batches are further from each other than those of large ones. Their squared norms
// tell both how long the true gradient is and how much samples differ, and the ratio of the two is the
// critical batch: far below it twice the batch makes half the steps do, far above it hardly fewer. It grows
// while a network learns, so what is measured at the start of training is a lower bound for later.
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
  // Unbiased, averaged over the samples: of the true gradient's squared norm, and of the trace of the
  // covariance of a single sample's gradient.
  double gradient_square() const;
  double variance() const;
  // In samples of a global batch. Infinite where the gradient could not be told from noise; 0 without
  // samples.
  double critical_batch() const;

 private:
  std::int64_t samples_ = 0;
  double gradient_squares_ = 0;
  double variances_ = 0;
};

// Gradients of micro-batches, each the mean over its samples, added up.
class MicroBatchGradients {
 public:
  explicit MicroBatchGradients(std::int64_t elements) : sum_(static_cast<std::size_t>(elements)) {}

  // The next tensor of the micro-batch, always in the same order.
  void add(std::span<const float> gradient);
  void end_micro_batch();

  std::int64_t micro_batches() const { return micro_batches_; }
  // Of all elements of all micro-batches.
  double squares() const { return squares_; }
  // Their sums; other ranks' may be added.
  std::vector<float>& values() { return sum_; }
  double square_of_sum() const;

 private:
  std::vector<float> sum_;
  std::size_t place_ = 0;
  double squares_ = 0;
  std::int64_t micro_batches_ = 0;
};

}  // namespace lockstep
