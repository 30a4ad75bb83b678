// SPDX-License-Identifier: Apache-2.0
//
// Elementwise kernels over flat memory of fp32, fp16 or bf16; arithmetic is fp32. Outputs may be inputs.
// Any address and any count will do; 16-byte aligned addresses are fast.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/activation.h"
#include "kernels/affine.h"

namespace lockstep {

struct CudaActivationForward {
  Activation activation = Activation::none;
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* x = nullptr;
  void* y = nullptr;
};
void cuda_activation_forward(Stream& stream, const CudaActivationForward& arguments);

struct CudaActivationBackward {
  Activation activation = Activation::none;
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* y = nullptr;
  const void* y_gradient = nullptr;
  void* x_gradient = nullptr;
};
void cuda_activation_backward(Stream& stream, const CudaActivationBackward& arguments);

// sum = a + b
struct CudaAdd {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* sum = nullptr;
};
void cuda_add(Stream& stream, const CudaAdd& arguments);

// values *= factor
struct CudaScale {
  DType type = DType::f32;
  std::int64_t count = 0;
  float factor = 1;
  void* values = nullptr;
};
void cuda_scale(Stream& stream, const CudaScale& arguments);

// Rounds to nearest even. to may be from only where the types are of one size.
struct CudaCast {
  std::int64_t count = 0;
  DType from_type = DType::f32;
  DType to_type = DType::f16;
  const void* from = nullptr;
  void* to = nullptr;
};
void cuda_cast(Stream& stream, const CudaCast& arguments);

// *finite = 0 when any element is infinite or NaN, else 1; with Write::accumulate it is left alone instead of
// set to 1, so that several calls judge several pieces of memory.
struct CudaAllFinite {
  DType type = DType::f32;
  std::int64_t count = 0;
  const void* values = nullptr;
  std::int32_t* finite = nullptr;  // in device memory
  Write write = Write::overwrite;
};
void cuda_all_finite(Stream& stream, const CudaAllFinite& arguments);

}  // namespace lockstep
