// SPDX-License-Identifier: Apache-2.0
//
// Optimizer arithmetic over flat memory: parameters, gradients and state share offsets, so one call updates
// all of them. An UpdateTable lists the elements to update and their weight decay. It lies in device memory,
// cut into chunks of bounded size: a CUDA kernel gives each chunk to a block, the CPU distributes chunks over
// threads, and there is no launch per tensor. Values and state are fp32. Gradients may have a half type; the
// same pass then writes a half copy of the values for the layers.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "core/tensor/buffer.h"
#include "core/tensor/dtype.h"

namespace lockstep {

// Elements with the same update: several adjacent parameters, or for LARS one.
struct UpdateSegment {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float weight_decay = 0;
  float penalty = 0;                   // AdamW: penalty * value is added to the gradient
  bool adaptive = false;               // LARS: uses a trust ratio; otherwise the ratio is 1
  bool gradient_has_momentum = false;  // SGD: see SgdUpdate
  std::int32_t first_chunk = 0;        // set by UpdateTable
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
  // Segments are in ascending order, disjoint and not empty. Elements outside them are not changed.
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

// State that changes from step to step. Lies in device memory: a captured step reads the values current at
// its replay.
struct StepControl {
  double learning_rate = 0;
  std::int64_t step = 1;        // of the optimizer, from 1; excludes skipped steps
  float loss_scale = 1;         // gradients come multiplied by it
  std::int32_t finite = 1;      // of this step's gradients; 0: the step is skipped
  std::int32_t good_steps = 0;  // consecutive; reset by a skipped step and after `interval` steps
  float clip = 1;               // further factor of the gradients, besides 1 / loss_scale: see GradientClip
};

// Clipping by the global norm (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
// networks", 2013), PyTorch's form: control->clip = min(1, most_norm / (norm + 1e-6)), where norm is the norm
// of the gradients without the loss scale.
struct GradientClip {
  const double* sums = nullptr;  // the parts of SquareSum over all gradients, including the loss scale
  double most_norm = 1;
  StepControl* control = nullptr;
};

// Dynamic loss scale (Micikevicius et al., "Mixed Precision Training", 2018): multiplied by growth after
// `interval` good steps in a row, by backoff on a skipped one. interval 0: the scale is constant.
struct LossScaleRule {
  float growth = 2;
  float backoff = 0.5f;
  std::int32_t interval = 0;
  // Upper limit of growth; a scale that starts above it does not grow. 2^24, the default of NVIDIA's Apex,
  // moves gradients down to 2^-48 into the range of fp16; the scale, its reciprocal and its quotient by any
  // global batch are normal fp32 numbers.
  float most = 0x1p24f;
  // Lower limit of backoff. Scaled by 2^-10, fp16 holds gradients up to 2^26: an overflow there is not caused
  // by the scale.
  float least = 0x1p-10f;
};

// Exponential moving average of values over the steps, after finish_step() (Polyak and Juditsky,
// "Acceleration of Stochastic Approximation by Averaging", 1992; with exponential weights): average = d *
// average + (1 - d) * value, with d = min(decay, (1 + t) / (10 + t)) after step t, so that the average leaves
// the initial values quickly. A skipped step changes nothing.
struct AverageUpdate {
  const StepControl* control = nullptr;
  double decay = 0;
  std::int64_t count = 0;
  const float* value = nullptr;
  float* average = nullptr;
};

// Swaps values and others.
struct ValueSwap {
  std::int64_t count = 0;
  float* values = nullptr;
  float* others = nullptr;
};

// The memory of an optimizer step. If control->finite is 0, nothing changes.
struct Update {
  const UpdateTable& table;
  float* value = nullptr;
  const void* gradient = nullptr;  // multiplied by control->loss_scale
  DType gradient_type = DType::f32;
  // Rounded from value in the same pass, at the same offsets; null: not wanted.
  void* copy = nullptr;
  DType copy_type = DType::f16;  // f16 or bf16
  const StepControl* control = nullptr;
  bool state_stays = false;  // do not write momentum and moments: for look-ahead steps
};

// If the step was skipped, to = from: undoes the changes of forward.
struct Restore {
  const StepControl* control = nullptr;
  std::int64_t count = 0;
  const float* from = nullptr;
  float* to = nullptr;
};

// Below, gradient is without the loss scale, and clipped; m and v are the state, which starts at zero.

// As in PyTorch:
//   g = gradient + weight_decay * value
//   m = momentum * m + g
//   value -= learning_rate * (nesterov ? g + momentum * m : m)
// For segments whose gradient already has momentum, g is weight_decay * value, and the gradient is applied
// directly: value -= learning_rate * gradient in addition.
struct SgdUpdate {
  float* momentum_buffer = nullptr;
  float momentum = 0;
  bool nesterov = false;
};

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019. In step t:
//   g = gradient + penalty * value
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   value -= learning_rate * (weight_decay * value + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon))
// epsilon > 0 keeps zero values with zero gradients at zero.
struct AdamWUpdate {
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// Sums of squares over a chunk.
struct SquaredNorms {
  double value = 0;
  double gradient = 0;
};

// You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017. With the norms of the
// segment:
//   r = trust_coefficient * |value| / (|gradient| + weight_decay * |value| + epsilon)
//   m = momentum * m + r * (gradient + weight_decay * value)
//   value -= learning_rate * m
// r is 1 if a norm is zero, and for segments that are not adaptive. The result does not depend on the number
// of threads: norms are summed chunk by chunk, in order.
struct LarsUpdate {
  float* momentum_buffer = nullptr;
  // Work space in device memory: norms has one element per chunk, trust_ratios one per segment. trust_ratios
  // holds this step's ratios afterwards.
  std::span<SquaredNorms> norms;
  std::span<float> trust_ratios;
  float momentum = 0;
  float trust_coefficient = 1e-3f;
  float epsilon = 1e-8f;
};

// The optimizer's rule with its memory and options. A backend has one function for all rules.
using UpdateRule = std::variant<SgdUpdate, AdamWUpdate, LarsUpdate>;

}  // namespace lockstep
