// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "kernels/cpu/element.h"
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
std::uint32_t not_finite(Half value) { return (value.bits & 0x7c00u) == 0x7c00u ? 1u : 0u; }
std::uint32_t not_finite(BFloat16 value) { return (value.bits & 0x7f80u) == 0x7f80u ? 1u : 0u; }

// body(typed pointers...) for pointers to elements of the type.
template <typename Body, typename... Pointers>
void with_elements(DType type, Body body, Pointers*... pointers) {
  with_element(type, [&](auto element) {
    using T = typename decltype(element)::type;
    body(static_cast<std::conditional_t<std::is_const_v<Pointers>, const T, T>*>(pointers)...);
  });
}

template <typename T>
float wide(T value) {
  return static_cast<float>(value);
}

template <typename T>
void run_dropout(const DropoutArguments& a, const T* x, T* y) {
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
      y[first + k] = static_cast<T>(dropout(wide(x[first + k]), words[static_cast<std::size_t>(k)]));
    }
  }
}

}  // namespace

void cpu_activation_forward(const ActivationForward& a) {
  with_activation(a.activation, [&a](auto function) {
    with_elements(
        a.type,
        [&a, function]<typename T>(const T* x, T* y) {
          for_each_index(a.count, [=](std::int64_t i) { y[i] = static_cast<T>(function(wide(x[i]))); });
        },
        a.x, a.y);
  });
}

void cpu_activation_backward(const ActivationBackward& a) {
  with_activation(a.activation, [&a](auto function) {
    with_elements(
        a.type,
        [&a, function]<typename T>(const T* y, const T* y_gradient, T* x_gradient) {
          for_each_index(a.count, [=](std::int64_t i) {
            x_gradient[i] = static_cast<T>(function.gradient(wide(y[i]), wide(y_gradient[i])));
          });
        },
        a.y, a.y_gradient, a.x_gradient);
  });
}

void cpu_add(const Addition& a) {
  with_elements(
      a.type,
      [&a]<typename T>(const T* first, const T* second, T* sum) {
        for_each_index(a.count, [=, add = Add()](std::int64_t i) {
          sum[i] = static_cast<T>(add(wide(first[i]), wide(second[i])));
        });
      },
      a.a, a.b, a.sum);
}

void cpu_scale(const Scaling& a) {
  with_elements(
      a.type,
      [&a]<typename T>(T* values) {
        for_each_index(a.count, [values, factor = a.factor](std::int64_t i) {
          values[i] = static_cast<T>(wide(values[i]) * factor);
        });
      },
      a.values);
}

void cpu_cast(const Cast& a) {
  with_elements(
      a.from_type,
      [&a]<typename From>(const From* from) {
        with_elements(
            a.to_type,
            [&a, from]<typename To>(To* to) {
              for_each_index(a.count, [=](std::int64_t i) { to[i] = static_cast<To>(wide(from[i])); });
            },
            a.to);
      },
      a.from);
}

void cpu_all_finite(const FiniteCheck& a) {
  std::uint32_t found = 0;
  with_elements(
      a.type,
      [&]<typename T>(const T* values) {
        const std::int64_t count = a.count;
#pragma omp parallel for simd schedule(static) reduction(| : found) if (parallel : count >= kParallelElements)
        for (std::int64_t i = 0; i < count; ++i) found |= not_finite(values[i]);
      },
      a.values);
  if (found != 0) {
    *a.finite = 0;
  } else if (a.write == Write::overwrite) {
    *a.finite = 1;
  }
}

void cpu_dropout(const DropoutArguments& a) {
  CHECK(a.probability >= 0 && a.probability < 1, "a dropout probability of {}", a.probability);
  with_elements(
      a.type, [&a]<typename T>(const T* x, T* y) { run_dropout(a, x, y); }, a.x, a.y);
}

}  // namespace lockstep
