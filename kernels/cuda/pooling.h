// SPDX-License-Identifier: Apache-2.0
//
// Pooling of NHWC images in fp32 or a half type. Backward gathers: each input element sums over the windows
// that contain it, in a fixed order and without atomic additions, so the bits are the same in every run.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/pooling.h"

namespace lockstep {

// Planned pooling of [N, H, W, C] to [N, out_height, out_width, C].
struct CudaPooling {
  PoolingKind kind = PoolingKind::max;
  DType type = DType::f32;
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t out_height = 0;
  std::int64_t out_width = 0;
  std::int64_t kernel_height = 0;
  std::int64_t kernel_width = 0;
  std::int64_t stride = 1;
  std::int64_t padding = 0;

  // The input is [N, C, H, W].
  static CudaPooling from(const PoolingOptions& options, DType type, const Shape& input);
  // Bytes that forward saves for backward: for each output element the position of its maximum in the window,
  // in one byte for windows of at most 256 elements, else in four. 0 for average pooling.
  std::size_t saved_bytes() const;
};

// saved may be null: no positions are saved. The maximum of a window with a NaN is NaN.
void cuda_pooling_forward(Stream& stream, const CudaPooling& pooling, const void* x, void* y, void* saved);

struct CudaPoolingBackward {
  const void* y_gradient = nullptr;
  const void* saved = nullptr;  // max only
  void* x_gradient = nullptr;   // overwritten
};
void cuda_pooling_backward(Stream& stream, const CudaPooling& pooling, const CudaPoolingBackward& arguments);

}  // namespace lockstep
