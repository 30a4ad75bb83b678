// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/batch_norm_rows.h"

#include <algorithm>

#include "core/system/processors.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/lanes.h"
#include "kernels/functors.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

// Sums in fp32 are added to fp64 sums after this many positions, before they lose precision.
constexpr std::int64_t kPositionsInFloat = 256;

template <typename V>
INLINE void add_to(double* sum, const V& value) {
  const auto* lanes = reinterpret_cast<const float*>(&value);
  for (std::size_t lane = 0; lane < sizeof(V) / sizeof(float); ++lane)
    sum[lane] += static_cast<double>(lanes[lane]);
}

// Calls body(first, last) for runs of positions that are summed in fp32.
template <typename Body>
INLINE void in_runs(std::int64_t positions, Body body) {
  for (std::int64_t first = 0; first < positions; first += kPositionsInFloat) {
    body(first, std::min(positions, first + kPositionsInFloat));
  }
}

// A group of adjacent lanes of a row.
struct Group {
  std::int64_t positions = 0;
  std::int64_t stride = 0;  // from one position to the next
  std::int64_t lane = 0;    // the first
};

// The address of the group's first lane; null stays null.
template <typename T>
INLINE const T* elements(const void* row, const Group& group) {
  return row == nullptr ? nullptr : static_cast<const T*>(row) + group.lane;
}
template <typename T>
INLINE T* elements(void* row, const Group& group) {
  return row == nullptr ? nullptr : static_cast<T*>(row) + group.lane;
}

template <int W, typename T>
INLINE void moments_of_lanes(const Group& group, const void* row, const float* shift, double* sum,
                             double* square) {
  using V = typename Lanes<W>::Float;
  const T* x = elements<T>(row, group);
  const V center = load<V>(shift + group.lane);
  in_runs(
      group.positions, [&](std::int64_t first, std::int64_t last) __attribute__((always_inline)) {
        V sums[4] = {}, squares[4] = {};  // four chains hide the latency of an addition
        std::int64_t p = first;
        for (; p + 4 <= last; p += 4) {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const V d = load<V>(x + (p + i) * group.stride) - center;
            sums[i] += d;
            squares[i] += d * d;
          }
        }
        for (; p < last; ++p) {
          const V d = load<V>(x + p * group.stride) - center;
          sums[0] += d;
          squares[0] += d * d;
        }
        add_to(sum + group.lane, (sums[0] + sums[1]) + (sums[2] + sums[3]));
        add_to(square + group.lane, (squares[0] + squares[1]) + (squares[2] + squares[3]));
      });
}

// The coefficients of each lane.
template <typename V>
struct Normal {
  V slope, mean, offset;

  template <typename Row>
  static INLINE Normal of(const Row& row, const Group& group) {
    return {load<V>(row.slope + group.lane), load<V>(row.mean + group.lane),
            load<V>(row.offset + group.lane)};
  }
};

// Converts floats 1 and 0 to bytes 1 and 0 by their bits: fewer instructions than a conversion.
template <typename V>
INLINE auto to_passed(const V& ones) {
  const auto words = same_bits<typename LanesOf<V>::Word>(ones);
  return bytes_of_words<LanesOf<V>>((words >> 23) & 1u);
}
// The gradient where its byte is 1, else 0. By its bits: infinity and NaN times 0 are NaN.
template <typename V>
INLINE V where_passed(const V& gradient, const std::uint8_t* passed) {
  using Word = typename LanesOf<V>::Word;
  const Word words = words_of_bytes<LanesOf<V>>(load<typename LanesOf<V>::Byte>(passed));
  return same_bits<V>(same_bits<Word>(gradient) & (0u - words));
}

template <int W, typename T, typename F>
INLINE void normalize_lanes(const Group& group, F activation, const NormalizeRow& n) {
  using V = typename Lanes<W>::Float;
  const auto [slope, mean, offset] = Normal<V>::of(n, group);
  const T* x = elements<T>(n.x, group);
  const T* residual = elements<T>(n.residual, group);
  T* y = elements<T>(n.y, group);
  std::uint8_t* passed = elements<std::uint8_t>(n.passed, group);
  for (std::int64_t p = 0; p < group.positions; ++p) {
    const std::int64_t at = p * group.stride;
    V value = slope * (load<V>(x + at) - mean) + offset;
    if (residual != nullptr) value += load<V>(residual + at);
    store(y + at, activation(value));
    if (passed != nullptr) {
      store(passed + at, to_passed(activation.gradient(activation(value), V{} + 1.0f)));
    }
  }
}

// The gradient of the activation's input.
template <typename V, typename F>
INLINE V behind(F activation, const V& y_gradient, const V& normalized) {
  return activation.gradient(activation(normalized), y_gradient);
}

template <int W, typename T, typename F>
INLINE void gradient_sums_of_lanes(const Group& group, F activation, const GradientSumsRow& g) {
  using V = typename Lanes<W>::Float;
  const Normal<V> normal = Normal<V>::of(g, group);
  const T* x = elements<T>(g.x, group);
  const T* y_gradient = elements<T>(g.y_gradient, group);
  const std::uint8_t* passed = elements<std::uint8_t>(g.passed, group);
  T* residual_gradient = elements<T>(g.residual_gradient, group);
  in_runs(
      group.positions, [&](std::int64_t first, std::int64_t last) __attribute__((always_inline)) {
        V sums[2] = {}, products[2] = {};
        const auto add = [&](std::int64_t p, int chain) __attribute__((always_inline)) {
          const std::int64_t at = p * group.stride;
          const V d = load<V>(x + at) - normal.mean;
          V gradient = load<V>(y_gradient + at);
          if (passed != nullptr) {
            gradient = where_passed(gradient, passed + at);
          } else {
            gradient = behind(activation, gradient, normal.slope * d + normal.offset);
          }
          if (residual_gradient != nullptr) store(residual_gradient + at, gradient);
          sums[chain] += gradient;
          products[chain] += gradient * d;
        };
        std::int64_t p = first;
        for (; p + 2 <= last; p += 2) {
          add(p, 0);
          add(p + 1, 1);
        }
        if (p < last) add(p, 0);
        add_to(g.sum + group.lane, sums[0] + sums[1]);
        add_to(g.product + group.lane, products[0] + products[1]);
      });
}

template <int W, typename T, typename F>
INLINE void input_gradient_of_lanes(const Group& group, F activation, const InputGradientRow& g) {
  using V = typename Lanes<W>::Float;
  const auto [slope, mean, offset] = Normal<V>::of(g, group);
  const V factor = load<V>(g.factor + group.lane), by_x = load<V>(g.by_x + group.lane);
  const V constant = load<V>(g.constant + group.lane);
  const T* x = elements<T>(g.x, group);
  const T* y_gradient = elements<T>(g.y_gradient, group);
  T* x_gradient = elements<T>(g.x_gradient, group);
  for (std::int64_t p = 0; p < group.positions; ++p) {
    const std::int64_t at = p * group.stride;
    const V d = load<V>(x + at) - mean;
    const V gradient = behind(activation, load<V>(y_gradient + at), slope * d + offset);
    store(x_gradient + at, factor * (gradient + (by_x * d + constant)));
  }
}

// Calls work.operator()<width, element type>(group) for lanes in groups of 16, 8 and 1, on Arm also of 4.
template <typename T, typename Work>
INLINE void over_lanes(const BatchNormRow& row, Work work) {
  Group group{.positions = row.positions, .stride = row.lanes};
  for (; group.lane + 16 <= row.lanes; group.lane += 16) work.template operator()<16, T>(group);
  for (; group.lane + 8 <= row.lanes; group.lane += 8) work.template operator()<8, T>(group);
#if defined(__aarch64__)
  for (; group.lane + 4 <= row.lanes; group.lane += 4) work.template operator()<4, T>(group);
#endif
  for (; group.lane < row.lanes; ++group.lane) work.template operator()<1, T>(group);
}
template <typename Work>
INLINE void over_row(const BatchNormRow& row, Work work) {
  with_element(
      row.type, [&](auto element) __attribute__((always_inline)) {
        over_lanes<typename decltype(element)::type>(row, work);
      });
}

}  // namespace

void add_moments(const BatchNormRow& row, const void* x, const float* shift, double* sum, double* square) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    over_row(
        row, [&]<int W, typename T>(const Group& group)
                 __attribute__((always_inline)) { moments_of_lanes<W, T>(group, x, shift, sum, square); });
  });
}

void normalize(const BatchNormRow& row, Activation activation, const NormalizeRow& n) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    with_activation(
        activation, [&](auto function) __attribute__((always_inline)) {
          over_row(
              row, [&]<int W, typename T>(const Group& group)
                       __attribute__((always_inline)) { normalize_lanes<W, T>(group, function, n); });
        });
  });
}

void add_gradient_sums(const BatchNormRow& row, Activation activation, const GradientSumsRow& g) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    with_activation(
        activation, [&](auto function) __attribute__((always_inline)) {
          over_row(
              row, [&]<int W, typename T>(const Group& group)
                       __attribute__((always_inline)) { gradient_sums_of_lanes<W, T>(group, function, g); });
        });
  });
}

void write_input_gradient(const BatchNormRow& row, Activation activation, const InputGradientRow& g) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    with_activation(
        activation, [&](auto function) __attribute__((always_inline)) {
          over_row(
              row, [&]<int W, typename T>(const Group& group)
                       __attribute__((always_inline)) { input_gradient_of_lanes<W, T>(group, function, g); });
        });
  });
}

}  // namespace lockstep
