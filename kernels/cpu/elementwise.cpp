// SPDX-License-Identifier: Apache-2.0
//
// Loops over the functors. Below kParallelElements one thread is faster than waking a team.
#include <bit>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

constexpr std::int64_t kParallelElements = 1 << 14;

}  // namespace

void cpu_relu_forward(std::int64_t count, const float* x, float* y) {
  const ReluForward relu;
#pragma omp parallel for simd if (count >= kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) y[i] = relu(x[i]);
}

void cpu_relu_backward(std::int64_t count, const float* y, const float* y_gradient, float* x_gradient) {
  const ReluBackward relu;
#pragma omp parallel for simd if (count >= kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) x_gradient[i] = relu(y[i], y_gradient[i]);
}

void cpu_add(std::int64_t count, const float* a, const float* b, float* sum) {
  const Add add;
#pragma omp parallel for simd if (count >= kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) sum[i] = add(a[i], b[i]);
}

void cpu_scale(std::int64_t count, float factor, float* values) {
#pragma omp parallel for simd if (count >= kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

void cpu_sgd_update(const SgdUpdate& arguments) {
  const SgdStep step{arguments.learning_rate, arguments.momentum, arguments.weight_decay};
  float* value = arguments.value;
  const float* gradient = arguments.gradient;
  float* momentum = arguments.momentum_buffer;
#pragma omp parallel for simd if (arguments.count >= kParallelElements)
  for (std::int64_t i = 0; i < arguments.count; ++i) step(value[i], gradient[i], momentum[i]);
}

// An exponent of all ones is infinity or NaN.
void cpu_all_finite(std::int64_t count, const float* values, std::int32_t* finite) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::int32_t bad = 0;
#pragma omp parallel for simd reduction(| : bad) if (count >= kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) {
    bad |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1 : 0;
  }
  *finite = bad == 0 ? 1 : 0;
}

}  // namespace lockstep
