// SPDX-License-Identifier: Apache-2.0
//
// The memory that batch norm's kernels pass to each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor/buffer.h"
#include "kernels/cuda/element.h"

namespace lockstep {

// Rows of one float per channel, each aligned to kAlignment. `saved`: mean, 1 / deviation, then the passed
// bits. `scratch`: in backward three rows of coefficients; then the partial sums; at the end
// CudaBatchNorm::told().
struct BatchNormMemory {
  static std::size_t row_bytes(std::int64_t channels) {
    return align_up(static_cast<std::size_t>(channels) * sizeof(float));
  }
  static float* row(void* memory, std::int64_t channels, std::size_t index) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory) + index * row_bytes(channels));
  }
  static const float* row(const void* memory, std::int64_t channels, std::size_t index) {
    return row(const_cast<void*>(memory), channels, index);
  }
};

// Bytes of one row of passed bits, one bit per channel. Whole 32-bit words, so that a warp writes one at a
// time.
__host__ __device__ constexpr std::int64_t passed_row_bytes(std::int64_t channels) {
  return ceil_div(channels, 32) * 4;
}

}  // namespace lockstep
