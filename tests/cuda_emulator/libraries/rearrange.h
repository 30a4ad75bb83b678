// SPDX-License-Identifier: Apache-2.0
//
// Tensors of four dimensions as the emulated cuDNN computes with them, [N][H][W][C], and operations on their
// elements. Memory is one thread's; compiled for speed, without sanitizers.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::emulator {

// N, C, H, W.
using Four = std::array<std::int64_t, 4>;

// Whether elements with these strides already lie as they are computed with.
bool is_channels_last(const Four& sizes, const Four& strides);
// Between memory with the strides and channels-last memory.
void gather(const Four& sizes, const Four& strides, const float* memory, float* channels_last);
void scatter(const Four& sizes, const Four& strides, const float* channels_last, float* memory);

// channels-last -> channels-last: an element for each of `sizes`, from tensors that have one in some
// dimensions.
void broadcast(const Four& from_sizes, const float* from, const Four& sizes, float* to);
// The sums over the dimensions in which to_sizes is one.
void reduce(const Four& sizes, const float* from, const Four& to_sizes, float* to);

enum class Arithmetic { add, multiply, subtract };
// a[i] = alpha * a[i] (op) beta * b[i].
void combine(Arithmetic operation, float alpha, const float* b, float beta, std::int64_t count, float* a);
struct Clip {
  float lowest, highest, slope_below;
};
void relu(const Clip& clip, std::int64_t count, float* values);
// gradient[i] *= the derivative at x[i].
void relu_gradient(const Clip& clip, const float* x, std::int64_t count, float* gradient);

// Of `pixels` rows of `channels`: sums, then sums of squares.
void statistics(const float* values, std::int64_t pixels, std::int64_t channels, float* sums);

}  // namespace lockstep::emulator
