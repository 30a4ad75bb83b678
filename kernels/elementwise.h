// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations over flat memory of fp32, fp16 or bf16; arithmetic is fp32 and results are rounded
// to nearest even. Outputs may be inputs. Any address and any count will do; aligned addresses are fast.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/parameter.h"
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
  const void* y = nullptr;
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

// to may be from only where the types are of one size.
struct Cast {
  std::int64_t count = 0;
  DType from_type = DType::f32;
  DType to_type = DType::f16;
  const void* from = nullptr;
  void* to = nullptr;
};

// *finite = 0 when any element is infinite or NaN, else 1; with Write::accumulate it is left alone instead of
// set to 1, so that several calls judge several pieces of memory.
struct FiniteCheck {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  std::int32_t* finite = nullptr;  // in device memory
  Write write = Write::overwrite;
};

// The sum of squares, in kSquareSums parts: what the host adds up. Each part is a sum of doubles in an order
// that depends on the count alone. With Write::accumulate parts are added to what is there.
inline constexpr std::int64_t kSquareSums = 128;
struct SquareSum {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  double* sums = nullptr;  // kSquareSums, in device memory
  Write write = Write::overwrite;
};

}  // namespace lockstep
