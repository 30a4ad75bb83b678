// SPDX-License-Identifier: Apache-2.0
//
// What batch norm's kernels hand to each other, and how it lies in their memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "kernels/cuda/element.h"

namespace lockstep {

// Lays out `saved` and `scratch`.
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

// Of a row of passed bits: whole words, so that a warp can write one.
__host__ __device__ constexpr std::int64_t passed_row_bytes(std::int64_t channels) {
  return ceil_div(channels, 32) * 4;
}

}  // namespace lockstep
