// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/rearrange.h"

namespace lockstep::emulator {
namespace {

// Calls visit(channels-last index, offset by the strides) for each element.
template <typename Visit>
void each(const Four& sizes, const Four& strides, Visit visit) {
  const auto [batch, channels, height, width] = sizes;
  std::int64_t index = 0;
  for (std::int64_t n = 0; n < batch; ++n) {
    for (std::int64_t h = 0; h < height; ++h) {
      for (std::int64_t w = 0; w < width; ++w) {
        const std::int64_t row = n * strides[0] + h * strides[2] + w * strides[3];
        for (std::int64_t c = 0; c < channels; ++c) visit(index++, row + c * strides[1]);
      }
    }
  }
}

Four channels_last_strides(const Four& s) { return {s[2] * s[3] * s[1], 1, s[3] * s[1], s[1]}; }

// The channels-last strides, with 0 in dimensions of size one.
Four broadcast_strides(const Four& sizes) {
  Four strides = channels_last_strides(sizes);
  for (std::size_t i = 0; i < 4; ++i) strides[i] = sizes[i] == 1 ? 0 : strides[i];
  return strides;
}

}  // namespace

bool is_channels_last(const Four& sizes, const Four& strides) {
  const Four expected = channels_last_strides(sizes);
  for (std::size_t i = 0; i < 4; ++i) {
    if (sizes[i] != 1 && strides[i] != expected[i]) return false;
  }
  return true;
}

void gather(const Four& sizes, const Four& strides, const float* memory, float* channels_last) {
  each(sizes, strides,
       [=](std::int64_t index, std::int64_t offset) { channels_last[index] = memory[offset]; });
}

void scatter(const Four& sizes, const Four& strides, const float* channels_last, float* memory) {
  each(sizes, strides,
       [=](std::int64_t index, std::int64_t offset) { memory[offset] = channels_last[index]; });
}

void broadcast(const Four& from_sizes, const float* from, const Four& sizes, float* to) {
  each(sizes, broadcast_strides(from_sizes),
       [=](std::int64_t index, std::int64_t offset) { to[index] = from[offset]; });
}

void reduce(const Four& sizes, const float* from, const Four& to_sizes, float* to) {
  for (std::int64_t i = 0; i < to_sizes[0] * to_sizes[1] * to_sizes[2] * to_sizes[3]; ++i) to[i] = 0;
  each(sizes, broadcast_strides(to_sizes),
       [=](std::int64_t index, std::int64_t offset) { to[offset] += from[index]; });
}

void combine(Arithmetic operation, float alpha, const float* b, float beta, std::int64_t count, float* a) {
  if (operation == Arithmetic::multiply) {
    for (std::int64_t i = 0; i < count; ++i) a[i] = alpha * a[i] * (beta * b[i]);
    return;
  }
  const float factor = operation == Arithmetic::subtract ? -beta : beta;
  for (std::int64_t i = 0; i < count; ++i) a[i] = alpha * a[i] + factor * b[i];
}

void relu(const Clip& clip, std::int64_t count, float* values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = values[i];
    if (x < clip.lowest) values[i] = clip.lowest + clip.slope_below * (x - clip.lowest);
    if (x > clip.highest) values[i] = clip.highest;
  }
}

void relu_gradient(const Clip& clip, const float* x, std::int64_t count, float* gradient) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (x[i] <= clip.lowest) gradient[i] *= clip.slope_below;
    if (x[i] >= clip.highest) gradient[i] = 0;
  }
}

void statistics(const float* values, std::int64_t pixels, std::int64_t channels, float* sums) {
  for (std::int64_t c = 0; c < 2 * channels; ++c) sums[c] = 0;
  for (std::int64_t i = 0; i < pixels; ++i, values += channels) {
    for (std::int64_t c = 0; c < channels; ++c) sums[c] += values[c];
    for (std::int64_t c = 0; c < channels; ++c) sums[channels + c] += values[c] * values[c];
  }
}

}  // namespace lockstep::emulator
