// SPDX-License-Identifier: Apache-2.0
//
// Optimizer arithmetic over flat memory: parameters, gradients and state share offsets, so one call updates
// all of them. An UpdateTable says which elements are updated and with what weight decay; it lies in memory
// of the device, cut into pieces of bounded size: a CUDA kernel gives each piece to a block, the CPU deals
// pieces to threads, and neither starts anything for each tensor.
#pragma once

#include <cstdint>
#include <span>

#include "core/buffer.h"

namespace lockstep {

// Elements updated alike: several parameters that are adjacent, or for LARS one.
struct UpdateSegment {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float weight_decay = 0;
  bool adaptive = false;         // LARS: has a trust ratio; else that is 1
  std::int32_t first_chunk = 0;  // filled in by UpdateTable
};

// A piece of one segment: elements [begin, begin + count), count <= kUpdateChunk. A segment's chunks are
// adjacent; only its last may be smaller.
struct UpdateChunk {
  std::int64_t begin = 0;
  std::int32_t count = 0;
  std::int32_t segment = 0;
};
inline constexpr std::int64_t kUpdateChunk = 8192;

class UpdateTable {
 public:
  // Segments in ascending order, disjoint, not empty. Elements in none of them are left alone.
  UpdateTable(Device device, std::span<const UpdateSegment> segments);

  // Both in memory of the device.
  std::span<const UpdateSegment> segments() const;
  std::span<const UpdateChunk> chunks() const;
  std::int64_t elements() const { return elements_; }

 private:
  std::int64_t elements_ = 0;
  Buffer segments_;
  Buffer chunks_;
};

// Stochastic gradient descent with momentum, PyTorch's form:
//   g = gradient + weight_decay * value;  m = momentum * m + g
//   value -= learning_rate * (nesterov ? g + momentum * m : m)
// The first step's m is g, because m starts at zero.
struct SgdUpdate {
  const UpdateTable& table;
  float* value = nullptr;
  const float* gradient = nullptr;
  float* momentum_buffer = nullptr;
  float learning_rate = 0;
  float momentum = 0;
  bool nesterov = false;
};

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), PyTorch's form, at step t:
//   value -= learning_rate * weight_decay * value
//   m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient^2
//   value -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// epsilon > 0 keeps what is zero, and has zero gradients, at zero.
struct AdamWUpdate {
  const UpdateTable& table;
  float* value = nullptr;
  const float* gradient = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::int64_t step = 1;  // t, from 1
};

// Sums of squares over a chunk.
struct SquaredNorms {
  double value = 0;
  double gradient = 0;
};

// LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017), with the learning
// rate outside the momentum as in PyTorch's SGD. For each segment, with norms over its elements:
//   r = trust_coefficient * |value| / (|gradient| + weight_decay * |value| + epsilon)
//   m = momentum * m + r * (gradient + weight_decay * value);  value -= learning_rate * m
// r is 1 where a norm is zero, and for segments that are not adaptive. The bits do not depend on the number
// of threads: norms are summed chunk by chunk, in order.
struct LarsUpdate {
  const UpdateTable& table;
  float* value = nullptr;
  const float* gradient = nullptr;
  float* momentum_buffer = nullptr;
  // Work space, in memory of the device: one element for each chunk, and for each segment. trust_ratios holds
  // this step's afterwards.
  std::span<SquaredNorms> norms;
  std::span<float> trust_ratios;
  float learning_rate = 0;
  float momentum = 0;
  float trust_coefficient = 1e-3f;
  float epsilon = 1e-8f;
};

}  // namespace lockstep
