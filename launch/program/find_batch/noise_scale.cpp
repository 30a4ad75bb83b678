// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/noise_scale.h"

#include <cstddef>
#include <limits>

#include "core/error.h"

namespace lockstep {

void NoiseScale::add(const NoiseSample& sample) {
  CHECK(sample.large_batch > sample.small_batch, "the noise needs a batch above {}, not {}",
        sample.small_batch, sample.large_batch);
  const double b = sample.small_batch, all = sample.large_batch;
  gradient_squares_ += (all * sample.large_square - b * sample.small_square) / (all - b);
  variances_ += (sample.small_square - sample.large_square) / (1 / b - 1 / all);
  ++samples_;
}

double NoiseScale::gradient_square() const {
  return samples_ == 0 ? 0 : gradient_squares_ / static_cast<double>(samples_);
}

double NoiseScale::variance() const { return samples_ == 0 ? 0 : variances_ / static_cast<double>(samples_); }

double NoiseScale::critical_batch() const {
  if (samples_ == 0 || variance() <= 0) return 0;
  if (gradient_square() <= 0) return std::numeric_limits<double>::infinity();
  return variance() / gradient_square();
}

void MicroBatchGradients::add(std::span<const float> gradient) {
  CHECK(place_ + gradient.size() <= sum_.size(), "a micro-batch has {} elements, {} were added", sum_.size(),
        place_ + gradient.size());
  float* sums = sum_.data() + place_;
  double squares = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    sums[i] += gradient[i];
    squares += static_cast<double>(gradient[i]) * gradient[i];
  }
  squares_ += squares;
  place_ += gradient.size();
}

void MicroBatchGradients::end_micro_batch() {
  CHECK(place_ == sum_.size(), "a micro-batch has {} elements, {} were added", sum_.size(), place_);
  place_ = 0;
  ++micro_batches_;
}

double MicroBatchGradients::square_of_sum() const {
  double square = 0;
  for (const float value : sum_) square += static_cast<double>(value) * value;
  return square;
}

}  // namespace lockstep
