// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

// body(i) for every i; bodies of different i touch different elements.
template <typename Body>
void for_each_index(std::int64_t count, Body body) {
  if (count < kParallelElements) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for simd schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// An exponent of all ones is infinity or NaN; in integers, so that no floating-point option can optimise it
// away.
std::uint32_t not_finite(float value) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
}

}  // namespace

void cpu_activation_forward(Activation activation, std::int64_t count, const float* x, float* y) {
  with_activation(activation, [=](auto function) {
    for_each_index(count, [=](std::int64_t i) { y[i] = function(x[i]); });
  });
}

void cpu_activation_backward(Activation activation, std::int64_t count, const float* y,
                             const float* y_gradient, float* x_gradient) {
  with_activation(activation, [=](auto function) {
    for_each_index(count, [=](std::int64_t i) { x_gradient[i] = function.gradient(y[i], y_gradient[i]); });
  });
}

void cpu_add(std::int64_t count, const float* a, const float* b, float* sum) {
  for_each_index(count, [=, add = Add()](std::int64_t i) { sum[i] = add(a[i], b[i]); });
}

void cpu_scale(std::int64_t count, float factor, float* values) {
  for_each_index(count, [=](std::int64_t i) { values[i] *= factor; });
}

void cpu_dropout(const DropoutArguments& a) {
  CHECK(a.probability >= 0 && a.probability < 1, "a dropout probability of {}", a.probability);
  const Dropout dropout = Dropout::from(a);
  const std::int64_t blocks = (a.features + 3) / 4;
#pragma omp parallel for schedule(static) if (a.batch * a.features >= kParallelElements)
  for (std::int64_t i = 0; i < a.batch * blocks; ++i) {
    const std::int64_t sample = i / blocks;
    const std::int64_t block = i % blocks;
    const PhiloxCounter words = dropout.words(a.samples[sample], static_cast<std::uint32_t>(block));
    const std::int64_t first = sample * a.features + 4 * block;
    const std::int64_t count = std::min<std::int64_t>(4, a.features - 4 * block);
    for (std::int64_t k = 0; k < count; ++k) {
      a.y[first + k] = dropout(a.x[first + k], words[static_cast<std::size_t>(k)]);
    }
  }
}

void cpu_all_finite(std::int64_t count, const float* values, std::int32_t* finite) {
  std::uint32_t found = 0;
  if (count < kParallelElements) {
#pragma omp simd reduction(| : found)
    for (std::int64_t i = 0; i < count; ++i) found |= not_finite(values[i]);
  } else {
#pragma omp parallel for simd schedule(static) reduction(| : found)
    for (std::int64_t i = 0; i < count; ++i) found |= not_finite(values[i]);
  }
  *finite = found == 0 ? 1 : 0;
}

}  // namespace lockstep
