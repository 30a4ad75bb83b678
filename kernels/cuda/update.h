// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps on the device, of everything in an UpdateTable: fp32 master weights and state, gradients in
// fp32 or a half type, and in the same pass the copy of the weights that the next forward reads. What changes
// from step to step is read from device memory, so that a captured step stays right.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/update.h"

namespace lockstep {

// Lies in device memory.
struct UpdateControl {
  double learning_rate = 0;
  std::int64_t step = 1;      // AdamW's t, from 1
  float gradient_factor = 1;  // gradients are multiplied by it first: 1 / loss_scale
};

struct CudaUpdate {
  const UpdateTable& table;  // of the stream's device
  float* value = nullptr;
  const void* gradient = nullptr;
  DType gradient_type = DType::f32;
  // Rounded from value, at the same offsets; null: not wanted.
  void* copy = nullptr;
  DType copy_type = DType::f16;  // f16 or bf16
  const UpdateControl* control = nullptr;
  // In device memory; where it is 0, nothing changes. Null: always step.
  const std::int32_t* finite = nullptr;
};

// See SgdUpdate.
struct CudaSgd {
  float* momentum_buffer = nullptr;
  float momentum = 0;
  bool nesterov = false;
};
void cuda_sgd_update(Stream& stream, const CudaUpdate& update, const CudaSgd& sgd);

// See AdamWUpdate.
struct CudaAdamW {
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};
void cuda_adamw_update(Stream& stream, const CudaUpdate& update, const CudaAdamW& adamw);

// See LarsUpdate; norms are of the multiplied gradients.
struct CudaLars {
  float* momentum_buffer = nullptr;
  std::span<SquaredNorms> norms;  // work space, one for each chunk
  std::span<float> trust_ratios;  // one for each segment
  float momentum = 0;
  float trust_coefficient = 1e-3f;
  float epsilon = 1e-8f;
};
void cuda_lars_update(Stream& stream, const CudaUpdate& update, const CudaLars& lars);

}  // namespace lockstep
