// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/batch_norm_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/processors.h"
#include "kernels/functors.h"

// Inlined into each version of a function for several processors.
#define INLINE inline __attribute__((always_inline))

namespace lockstep {
namespace {

// W channels at once. (vector_size of a template's parameter is ignored by g++ 12.)
template <int W>
struct Lanes;
template <>
struct Lanes<16> {
  using Float = float __attribute__((vector_size(64)));
  using Byte = std::uint8_t __attribute__((vector_size(16)));
};
template <>
struct Lanes<8> {
  using Float = float __attribute__((vector_size(32)));
  using Byte = std::uint8_t __attribute__((vector_size(8)));
};
template <>
struct Lanes<1> {
  using Float = float;
  using Byte = std::uint8_t;
};
static_assert(sizeof(Lanes<16>::Float) == 64 && sizeof(Lanes<8>::Float) == 32);

// Element by element.
template <typename To, typename From>
INLINE To converted(const From& from) {
  if constexpr (std::is_arithmetic_v<From>) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, To);
  }
}

template <typename V, typename T>
INLINE V load(const T* data) {
  V value;
  std::memcpy(&value, data, sizeof(V));
  return value;
}
template <typename V, typename T>
INLINE void store(T* data, const V& value) {
  std::memcpy(data, &value, sizeof(V));
}

// Sums in fp32 are moved on to fp64 before they lose digits.
constexpr std::int64_t kPositionsInFloat = 256;

template <typename V>
INLINE void add_to(double* sum, const V& value) {
  const auto* lanes = reinterpret_cast<const float*>(&value);
  for (std::size_t lane = 0; lane < sizeof(V) / sizeof(float); ++lane)
    sum[lane] += static_cast<double>(lanes[lane]);
}

// body(first, last) over runs of positions that are summed in fp32.
template <typename Body>
INLINE void in_runs(std::int64_t positions, Body body) {
  for (std::int64_t first = 0; first < positions; first += kPositionsInFloat) {
    body(first, std::min(positions, first + kPositionsInFloat));
  }
}

template <int W>
INLINE void moments_of_lanes(std::int64_t positions, std::int64_t stride, const float* x, const float* shift,
                             double* sum, double* square) {
  using V = typename Lanes<W>::Float;
  const V center = load<V>(shift);
  in_runs(positions, [&](std::int64_t first, std::int64_t last) {
    V sums[4] = {}, squares[4] = {};  // four chains hide the latency of an addition
    std::int64_t p = first;
    for (; p + 4 <= last; p += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const V d = load<V>(x + (p + i) * stride) - center;
        sums[i] += d;
        squares[i] += d * d;
      }
    }
    for (; p < last; ++p) {
      const V d = load<V>(x + p * stride) - center;
      sums[0] += d;
      squares[0] += d * d;
    }
    add_to(sum, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    add_to(square, (squares[0] + squares[1]) + (squares[2] + squares[3]));
  });
}

template <int W, typename F>
INLINE void normalize_lanes(std::int64_t positions, std::int64_t stride, F activation,
                            const NormalizeRow& n) {
  using V = typename Lanes<W>::Float;
  using B = typename Lanes<W>::Byte;
  const V slope = load<V>(n.slope), mean = load<V>(n.mean), offset = load<V>(n.offset);
  for (std::int64_t p = 0; p < positions; ++p) {
    const std::int64_t at = p * stride;
    V value = slope * (load<V>(n.x + at) - mean) + offset;
    if (n.residual != nullptr) value += load<V>(n.residual + at);
    store(n.y + at, activation(value));
    if (n.passed != nullptr) {
      store(n.passed + at, converted<B>(activation.gradient(activation(value), V{} + 1.0f)));
    }
  }
}

// What y_gradient becomes behind the activation.
template <typename V, typename F>
INLINE V behind(F activation, const V& y_gradient, const V& normalized) {
  return activation.gradient(activation(normalized), y_gradient);
}

template <int W, typename F>
INLINE void gradient_sums_of_lanes(std::int64_t positions, std::int64_t stride, F activation,
                                   const GradientSumsRow& g) {
  using V = typename Lanes<W>::Float;
  using B = typename Lanes<W>::Byte;
  const V slope = load<V>(g.slope), mean = load<V>(g.mean), offset = load<V>(g.offset);
  in_runs(positions, [&](std::int64_t first, std::int64_t last) {
    V sums[2] = {}, products[2] = {};
    const auto add = [&](std::int64_t p, int chain) __attribute__((always_inline)) {
      const std::int64_t at = p * stride;
      const V d = load<V>(g.x + at) - mean;
      V gradient = load<V>(g.y_gradient + at);
      if (g.passed != nullptr) {
        gradient *= converted<V>(load<B>(g.passed + at));
      } else {
        gradient = behind(activation, gradient, slope * d + offset);
      }
      if (g.residual_gradient != nullptr) store(g.residual_gradient + at, gradient);
      sums[chain] += gradient;
      products[chain] += gradient * d;
    };
    std::int64_t p = first;
    for (; p + 2 <= last; p += 2) {
      add(p, 0);
      add(p + 1, 1);
    }
    if (p < last) add(p, 0);
    add_to(g.sum, sums[0] + sums[1]);
    add_to(g.product, products[0] + products[1]);
  });
}

template <int W, typename F>
INLINE void input_gradient_of_lanes(std::int64_t positions, std::int64_t stride, F activation,
                                    const InputGradientRow& g) {
  using V = typename Lanes<W>::Float;
  const V slope = load<V>(g.slope), mean = load<V>(g.mean), offset = load<V>(g.offset);
  const V by_gradient = load<V>(g.by_gradient), by_x = load<V>(g.by_x), constant = load<V>(g.constant);
  for (std::int64_t p = 0; p < positions; ++p) {
    const std::int64_t at = p * stride;
    const V d = load<V>(g.x + at) - mean;
    const V gradient = behind(activation, load<V>(g.y_gradient + at), slope * d + offset);
    store(g.x_gradient + at, by_gradient * gradient + (by_x * d + constant));
  }
}

// work(width, first lane) for lanes in groups of 16, 8 and 1.
template <typename Work>
INLINE void over_lanes(std::int64_t lanes, Work work) {
  std::int64_t lane = 0;
  for (; lane + 16 <= lanes; lane += 16) work(std::integral_constant<int, 16>(), lane);
  for (; lane + 8 <= lanes; lane += 8) work(std::integral_constant<int, 8>(), lane);
  for (; lane < lanes; ++lane) work(std::integral_constant<int, 1>(), lane);
}

template <typename Pointer>
INLINE Pointer moved(Pointer pointer, std::int64_t by) {
  return pointer == nullptr ? nullptr : pointer + by;
}

INLINE NormalizeRow from_lane(const NormalizeRow& n, std::int64_t l) {
  return {n.x + l, moved(n.residual, l), n.slope + l, n.mean + l, n.offset + l, n.y + l, moved(n.passed, l)};
}
INLINE GradientSumsRow from_lane(const GradientSumsRow& g, std::int64_t l) {
  return {g.x + l,
          g.y_gradient + l,
          moved(g.passed, l),
          g.slope + l,
          g.mean + l,
          g.offset + l,
          moved(g.residual_gradient, l),
          g.sum + l,
          g.product + l};
}
INLINE InputGradientRow from_lane(const InputGradientRow& g, std::int64_t l) {
  return {g.x + l,           g.y_gradient + l, g.slope + l,    g.mean + l,      g.offset + l,
          g.by_gradient + l, g.by_x + l,       g.constant + l, g.x_gradient + l};
}

}  // namespace

LOCKSTEP_FOR_EACH_PROCESSOR void add_moments(const BatchNormRow& row, const float* x, const float* shift,
                                             double* sum, double* square) {
  over_lanes(
      row.lanes, [&](auto width, std::int64_t l) __attribute__((always_inline)) {
        moments_of_lanes<width.value>(row.positions, row.lanes, x + l, shift + l, sum + l, square + l);
      });
}

LOCKSTEP_FOR_EACH_PROCESSOR void normalize(const BatchNormRow& row, Activation activation,
                                           const NormalizeRow& n) {
  with_activation(
      activation, [&](auto function) __attribute__((always_inline)) {
        over_lanes(
            row.lanes, [&](auto width, std::int64_t l) __attribute__((always_inline)) {
              normalize_lanes<width.value>(row.positions, row.lanes, function, from_lane(n, l));
            });
      });
}

LOCKSTEP_FOR_EACH_PROCESSOR void add_gradient_sums(const BatchNormRow& row, Activation activation,
                                                   const GradientSumsRow& g) {
  with_activation(
      activation, [&](auto function) __attribute__((always_inline)) {
        over_lanes(
            row.lanes, [&](auto width, std::int64_t l) __attribute__((always_inline)) {
              gradient_sums_of_lanes<width.value>(row.positions, row.lanes, function, from_lane(g, l));
            });
      });
}

LOCKSTEP_FOR_EACH_PROCESSOR void write_input_gradient(const BatchNormRow& row, Activation activation,
                                                      const InputGradientRow& g) {
  with_activation(
      activation, [&](auto function) __attribute__((always_inline)) {
        over_lanes(
            row.lanes, [&](auto width, std::int64_t l) __attribute__((always_inline)) {
              input_gradient_of_lanes<width.value>(row.positions, row.lanes, function, from_lane(g, l));
            });
      });
}

}  // namespace lockstep
