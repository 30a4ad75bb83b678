// SPDX-License-Identifier: Apache-2.0
//
// Four-dimensional tensors in the order in which the emulated cuDNN computes, [N][H][W][C], and operations on
// their elements. All memory belongs to one thread; compiled for speed, without sanitizers.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::emulator {

// N, C, H, W.
using Four = std::array<std::int64_t, 4>;

// True if these strides are already channels-last.
bool is_channels_last(const Four& sizes, const Four& strides);
// Copy between memory with the given strides and channels-last memory.
void gather(const Four& sizes, const Four& strides, const float* memory, float* channels_last);
void scatter(const Four& sizes, const Four& strides, const float* channels_last, float* memory);

// Channels-last to channels-last: expands a tensor with size one in some dimensions to `sizes`.
void broadcast(const Four& from_sizes, const float* from, const Four& sizes, float* to);
// Sums over the dimensions in which to_sizes is one.
void reduce(const Four& sizes, const float* from, const Four& to_sizes, float* to);

enum class Arithmetic { add, multiply, subtract };
// a[i] = alpha * a[i] (op) beta * b[i].
void combine(Arithmetic operation, float alpha, const float* b, float beta, std::int64_t count, float* a);
struct Clip {
  float lowest, highest, slope_below;
};
void relu(const Clip& clip, std::int64_t count, float* values);
// gradient[i] *= derivative at x[i].
void relu_gradient(const Clip& clip, const float* x, std::int64_t count, float* gradient);

// Per channel, over `pixels` rows of `channels` values: sums, then sums of squares.
void statistics(const float* values, std::int64_t pixels, std::int64_t channels, float* sums);

}  // namespace lockstep::emulator
