// SPDX-License-Identifier: Apache-2.0
//
// Optimizer arithmetic over flat memory: parameters, gradients and state share offsets, so one call updates
// all of them. An UpdateTable says which elements are updated and with what weight decay; it lies in memory
// of the device, cut into pieces of bounded size: a CUDA kernel gives each piece to a block, the CPU deals
// pieces to threads, and neither starts anything for each tensor. Values and state are fp32; gradients may
// come in a half type, and a copy of the values is then made in the same pass for the layers to compute with.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "core/buffer.h"
#include "core/dtype.h"

namespace lockstep {

// Elements updated alike: several parameters that are adjacent, or for LARS one.
struct UpdateSegment {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float weight_decay = 0;
  bool adaptive = false;               // LARS: has a trust ratio; else that is 1
  bool gradient_has_momentum = false;  // SGD: see SgdUpdate
  std::int32_t first_chunk = 0;        // filled in by UpdateTable
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

// What changes from one step to the next. Lies in device memory: a captured step reads what is true when it
// is replayed.
struct StepControl {
  double learning_rate = 0;
  std::int64_t step = 1;        // of the optimizer, from 1; skipped steps do not count
  float loss_scale = 1;         // gradients come multiplied by it
  std::int32_t finite = 1;      // of this step's gradients; 0: the step is skipped
  std::int32_t good_steps = 0;  // since the loss scale changed
  float clip = 1;               // gradients are multiplied by it, beside 1 / loss_scale: see GradientClip
};

// Clipping by the global norm (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
// networks", 2013), PyTorch's form: control->clip = min(1, most_norm / (norm + 1e-6)), where norm is that of
// the gradients without their loss scale.
struct GradientClip {
  const double* sums = nullptr;  // the parts of SquareSum over all gradients, loss scale and all
  double most_norm = 1;
  StepControl* control = nullptr;
};

// Dynamic loss scale (Micikevicius et al., "Mixed Precision Training", 2018): multiplied by growth after
// `interval` good steps in a row, by backoff on a skipped one. interval 0: it stays.
struct LossScaleRule {
  float growth = 2;
  float backoff = 0.5f;
  std::int32_t interval = 0;
  // It grows up to `most`, unless it begins above it. 2^24, the default of NVIDIA's Apex, brings gradients
  // down to 2^-48 into the range of fp16; the scale, its reciprocal and its quotient by any global batch are
  // normal fp32 numbers.
  float most = 0x1p24f;
  // It falls no lower than this. Scaled by 2^-10, fp16 holds gradients up to 2^26: an overflow there is not
  // the scale's fault.
  float least = 0x1p-10f;
};

// An average of values over the steps, behind finish_step() (Polyak and Juditsky, "Acceleration of Stochastic
// Approximation by Averaging", 1992; with exponential weights): average = d * average + (1 - d) * value, with
// d = min(decay, (1 + t) / (10 + t)) behind step t, so that the first steps do not keep it near where
// training began. Where the step was skipped, nothing changes.
struct AverageUpdate {
  const StepControl* control = nullptr;
  double decay = 0;
  std::int64_t count = 0;
  const float* value = nullptr;
  float* average = nullptr;
};

// Values and others change places.
struct ValueSwap {
  std::int64_t count = 0;
  float* values = nullptr;
  float* others = nullptr;
};

// What an optimizer step works on. Where control->finite is 0, nothing changes.
struct Update {
  const UpdateTable& table;
  float* value = nullptr;
  const void* gradient = nullptr;  // multiplied by control->loss_scale
  DType gradient_type = DType::f32;
  // Rounded from value in the same pass, at the same offsets; null: not wanted.
  void* copy = nullptr;
  DType copy_type = DType::f16;  // f16 or bf16
  const StepControl* control = nullptr;
  bool state_stays = false;  // momentum and moments are read alone: where a step would lead
};

// to = from where the step was skipped: takes back what forward has changed.
struct Restore {
  const StepControl* control = nullptr;
  std::int64_t count = 0;
  const float* from = nullptr;
  float* to = nullptr;
};

// Stochastic gradient descent with momentum, PyTorch's form:
//   g = gradient + weight_decay * value;  m = momentum * m + g
//   value -= learning_rate * (nesterov ? g + momentum * m : m)
// The first step's m is g, because m starts at zero. Of segments whose gradient has momentum already, only
// weight decay is given it: g is weight_decay * value, and value -= learning_rate * gradient, too.
struct SgdUpdate {
  float* momentum_buffer = nullptr;
  float momentum = 0;
  bool nesterov = false;
};

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), PyTorch's form, at step t:
//   value -= learning_rate * weight_decay * value
//   m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient^2
//   value -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// epsilon > 0 keeps what is zero, and has zero gradients, at zero.
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

// LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017), with the learning
// rate outside the momentum as in PyTorch's SGD. For each segment, with norms over its elements:
//   r = trust_coefficient * |value| / (|gradient| + weight_decay * |value| + epsilon)
//   m = momentum * m + r * (gradient + weight_decay * value);  value -= learning_rate * m
// r is 1 where a norm is zero, and for segments that are not adaptive. The bits do not depend on the number
// of threads: norms are summed chunk by chunk, in order.
struct LarsUpdate {
  float* momentum_buffer = nullptr;
  // Work space, in memory of the device: one element for each chunk, and for each segment. trust_ratios holds
  // this step's afterwards.
  std::span<SquaredNorms> norms;
  std::span<float> trust_ratios;
  float momentum = 0;
  float trust_coefficient = 1e-3f;
  float epsilon = 1e-8f;
};

// By which rule, and with what of it. A backend has one function for all of them.
using UpdateRule = std::variant<SgdUpdate, AdamWUpdate, LarsUpdate>;

}  // namespace lockstep
