// SPDX-License-Identifier: Apache-2.0
//
// The transforms of Winograd's F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural
// Networks", 2016, section 4) for as many channels at once as a register V holds: 16 with AVX-512, 8 with
// AVX2, 4 with NEON. They are inlined into functions compiled for these instruction sets.
//
//   y = A^T [ (G g G^T) * (B^T x B) ] A
//
// x: 6x6 inputs, g: 3x3 weights, y: 4x4 outputs, *: element by element. The gradient of g takes the
// transposes: G^T [ (B^T x B) * (A y' A^T) ] G. Each transformed tensor is 6x6: 36 points.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/lanes.h"

namespace lockstep::winograd {

constexpr std::int64_t kPoints = 36;

// Contiguous channels of an activation: as many as V holds.
template <typename V>
constexpr std::int64_t kBlock = sizeof(V) / sizeof(float);

// The points 0, +-P, +-Q and infinity. Compared with the usual 1 and 2, these keep the transformed numbers
// closer together and reduce the error to a third. All their products are exact.
constexpr float kP = 0.625f, kP2 = kP * kP, kP3 = kP2 * kP;
constexpr float kQ = 1.5f, kQ2 = kQ * kQ, kQ3 = kQ2 * kQ;
constexpr float kWeight0 = 1 / (kP2 * kQ2);
constexpr float kWeightP = 1 / (2 * kP2 * (kP2 - kQ2)), kWeightQ = 1 / (2 * kQ2 * (kQ2 - kP2));

// Each struct multiplies one line by a matrix: reads elements with stride From, writes with stride To.
struct InputLine {  // B^T
  static constexpr int kIn = 6, kOut = 6;
  template <int From, int To, typename V>
  static LOCKSTEP_LANES_INLINE void run(const V* x, V* v) {
    const V a = x[4 * From] - kQ2 * x[2 * From], b = kP * (x[3 * From] - kQ2 * x[From]);
    const V c = x[4 * From] - kP2 * x[2 * From], d = kQ * (x[3 * From] - kP2 * x[From]);
    v[0] = kP2 * kQ2 * x[0] - (kP2 + kQ2) * x[2 * From] + x[4 * From];
    v[To] = a + b;
    v[2 * To] = a - b;
    v[3 * To] = c + d;
    v[4 * To] = c - d;
    v[5 * To] = kP2 * kQ2 * x[From] - (kP2 + kQ2) * x[3 * From] + x[5 * From];
  }
};
struct OutputLine {  // A^T
  static constexpr int kIn = 6, kOut = 4;
  template <int From, int To, typename V>
  static LOCKSTEP_LANES_INLINE void run(const V* m, V* y) {
    const V a = m[From] + m[2 * From], b = m[From] - m[2 * From];
    const V c = m[3 * From] + m[4 * From], d = m[3 * From] - m[4 * From];
    y[0] = m[0] + a + c;
    y[To] = kP * b + kQ * d;
    y[2 * To] = kP2 * a + kQ2 * c;
    y[3 * To] = kP3 * b + kQ3 * d + m[5 * From];
  }
};
struct OutputGradientLine {  // A
  static constexpr int kIn = 4, kOut = 6;
  template <int From, int To, typename V>
  static LOCKSTEP_LANES_INLINE void run(const V* y, V* m) {
    const V a = y[0] + kP2 * y[2 * From], b = kP * y[From] + kP3 * y[3 * From];
    const V c = y[0] + kQ2 * y[2 * From], d = kQ * y[From] + kQ3 * y[3 * From];
    m[0] = y[0];
    m[To] = a + b;
    m[2 * To] = a - b;
    m[3 * To] = c + d;
    m[4 * To] = c - d;
    m[5 * To] = y[3 * From];
  }
};
struct WeightLine {  // G
  static constexpr int kIn = 3, kOut = 6;
  template <int From, int To, typename V>
  static LOCKSTEP_LANES_INLINE void run(const V* g, V* u) {
    const V a = kWeightP * g[0] + kWeightP * kP2 * g[2 * From], b = kWeightP * kP * g[From];
    const V c = kWeightQ * g[0] + kWeightQ * kQ2 * g[2 * From], d = kWeightQ * kQ * g[From];
    u[0] = kWeight0 * g[0];
    u[To] = a + b;
    u[2 * To] = a - b;
    u[3 * To] = c + d;
    u[4 * To] = c - d;
    u[5 * To] = g[2 * From];
  }
};
struct WeightGradientLine {  // G^T
  static constexpr int kIn = 6, kOut = 3;
  template <int From, int To, typename V>
  static LOCKSTEP_LANES_INLINE void run(const V* u, V* g) {
    const V a = kWeightP * (u[From] + u[2 * From]), b = kWeightP * kP * (u[From] - u[2 * From]);
    const V c = kWeightQ * (u[3 * From] + u[4 * From]), d = kWeightQ * kQ * (u[3 * From] - u[4 * From]);
    g[0] = kWeight0 * u[0] + a + c;
    g[To] = b + d;
    g[2 * To] = kP2 * a + kQ2 * c + u[5 * From];
  }
};

// to (kOut x kOut) = L from (kIn x kIn) L^T
template <typename Line, typename V>
LOCKSTEP_LANES_INLINE void transform(const V* from, V* to) {
  V half[Line::kOut * Line::kIn];
#pragma GCC unroll 6
  for (int column = 0; column < Line::kIn; ++column)
    Line::template run<Line::kIn, Line::kIn>(from + column, half + column);
#pragma GCC unroll 6
  for (int row = 0; row < Line::kOut; ++row)
    Line::template run<1, 1>(half + row * Line::kIn, to + row * Line::kOut);
}

// A plane of an image: a block of channels, [height, width].
struct Plane {
  std::int64_t height = 0;
  std::int64_t width = 0;

  // The Size x Size elements starting at (row, column); zeros outside the plane.
  template <int Size, typename V, typename T>
  LOCKSTEP_LANES_INLINE void read(const T* plane, std::int64_t row, std::int64_t column, V* values) const {
    if (row >= 0 && column >= 0 && row + Size <= height && column + Size <= width) {
#pragma GCC unroll 6
      for (int r = 0; r < Size; ++r)
#pragma GCC unroll 6
        for (int c = 0; c < Size; ++c)
          values[r * Size + c] = load<V>(plane + ((row + r) * width + column + c) * kBlock<V>);
      return;
    }
    for (int r = 0; r < Size; ++r) {
      for (int c = 0; c < Size; ++c) {
        const std::int64_t y = row + r, x = column + c;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        values[r * Size + c] = inside ? load<V>(plane + (y * width + x) * kBlock<V>) : V{};
      }
    }
  }

  // Starts to load the Size x Size elements at (row, column) that lie inside the plane: the processor does
  // not predict reads of a few pixels of several rows.
  template <int Size, typename V, typename T>
  LOCKSTEP_LANES_INLINE void prefetch(const T* plane, std::int64_t row, std::int64_t column) const {
    const std::int64_t first = std::max<std::int64_t>(column, 0), last = std::min(column + Size, width);
    for (std::int64_t y = std::max<std::int64_t>(row, 0); y < std::min(row + Size, height); ++y)
      for (std::int64_t x = first; x < last; ++x) __builtin_prefetch(plane + (y * width + x) * kBlock<V>);
  }
};

template <typename V>
LOCKSTEP_LANES_INLINE void store_points(const V* values, float* points, std::int64_t stride) {
#pragma GCC unroll 36
  for (int p = 0; p < kPoints; ++p) store(points + p * stride, values[p]);
}
template <typename V>
LOCKSTEP_LANES_INLINE void load_points(const float* points, std::int64_t stride, V* values) {
#pragma GCC unroll 36
  for (int p = 0; p < kPoints; ++p) values[p] = load<V>(points + p * stride);
}

}  // namespace lockstep::winograd
