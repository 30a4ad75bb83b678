// SPDX-License-Identifier: Apache-2.0
//
// SoftmaxCrossEntropy on the device, of logits in fp32 or a half type. Softmax and sums are fp32 and wider;
// sums are taken in a fixed order.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/loss.h"

namespace lockstep {

// As in SoftmaxCrossEntropy; everything lies in device memory. The device cannot throw: a label outside the
// classes makes the loss NaN.
struct CudaSoftmaxCrossEntropy {
  DType type = DType::f32;  // of logits and their gradient
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  const void* logits = nullptr;
  const std::int32_t* labels = nullptr;
  const float* weights = nullptr;
  float label_smoothing = 0;
  float gradient_scale = 0;
  const float* loss_scale = nullptr;  // multiplies gradient_scale, in device memory; null: 1
  void* logits_gradient = nullptr;    // may be logits; null: not wanted
  LossSums* sums = nullptr;
  void* scratch = nullptr;  // softmax_cross_entropy_scratch_bytes(), aligned to 16 bytes
};

std::size_t softmax_cross_entropy_scratch_bytes(std::int64_t batch);
void cuda_softmax_cross_entropy(Stream& stream, const CudaSoftmaxCrossEntropy& arguments);

}  // namespace lockstep
