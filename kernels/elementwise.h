// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations over flat memory of fp32, fp16 or bf16; arithmetic is fp32 and results are rounded
// to nearest even. Outputs may alias inputs. Any address and count are valid; aligned addresses are faster.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"
#include "core/tensor/parameter.h"
#include "kernels/activation.h"

namespace lockstep {

struct ActivationForward {
  Activation activation = Activation::none;
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* x = nullptr;
  void* y = nullptr;
};

struct ActivationBackward {
  Activation activation = Activation::none;
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* y = nullptr;  // the result, or x if the activation reads_input()
  const void* y_gradient = nullptr;
  void* x_gradient = nullptr;
};

// sum = a + b
struct Addition {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* sum = nullptr;
};

// values *= factor
struct Scaling {
  DType type = DType::f32;
  std::int64_t count = 0;
  float factor = 1;
  void* values = nullptr;
};

// to may alias from only if both types have the same size. With Write::accumulate the result is added to the
// existing value, and the sum is rounded to to_type.
struct Cast {
  std::int64_t count = 0;
  DType from_type = DType::f32;
  DType to_type = DType::f16;
  const void* from = nullptr;
  void* to = nullptr;
  const float* factor = nullptr;  // in device memory; from is multiplied by it in fp32; null: 1
  Write write = Write::overwrite;
};

// *largest = the bits of the largest magnitude of the values as fp32. As integers, the bits order magnitudes,
// with infinity and then NaN above all numbers.
struct LargestMagnitude {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  std::int32_t* largest = nullptr;  // in device memory
};

// Chooses *scale = 2^e and *inverse = 2^-e so that values of at most *largest (see LargestMagnitude),
// multiplied by *scale, fit fp16: a sum of `terms` of them stays below 2^15. Both are 1 if *largest is zero
// or not finite. All in device memory.
struct HalfScale {
  const std::int32_t* largest = nullptr;
  int terms = 1;
  float* scale = nullptr;
  float* inverse = nullptr;
};

// *finite = 0 if any element is infinite or NaN, else 1. With Write::accumulate it is never set to 1, so
// several calls can check several pieces of memory.
struct FiniteCheck {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  std::int32_t* finite = nullptr;  // in device memory
  Write write = Write::overwrite;
};

// The sum of squares in kSquareSums parts, which the caller adds up. Each part is a sum of doubles in an
// order that depends only on type, count and, on a CPU, its instruction set. With Write::accumulate the parts
// are added to the existing ones.
inline constexpr std::int64_t kSquareSums = 128;
struct SquareSum {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  double* sums = nullptr;  // kSquareSums, in device memory
  Write write = Write::overwrite;
};

}  // namespace lockstep
