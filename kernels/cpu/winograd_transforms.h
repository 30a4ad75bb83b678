// SPDX-License-Identifier: Apache-2.0
//
// The transforms of Winograd's F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural
// Networks", 2016, section 4) for 16 channels at once, as vectors of 64 bytes. They are inlined into
// functions compiled for AVX-512.
//
//   y = A^T [ (G g G^T) * (B^T x B) ] A
//
// x: 6x6 inputs, g: 3x3 weights, y: 4x4 outputs, *: element by element. The gradient of g takes the
// transposes: G^T [ (B^T x B) * (A y' A^T) ] G. Each transformed tensor is 6x6: 36 points.
#pragma once

#include <cstdint>

#include "kernels/cpu/lanes.h"

#define LOCKSTEP_WINOGRAD_INLINE inline __attribute__((always_inline))

namespace lockstep::winograd {

constexpr std::int64_t kPoints = 36;
constexpr std::int64_t kBlock = 16;  // contiguous channels

using Vector = Lanes<16>::Float;

template <typename T>
LOCKSTEP_WINOGRAD_INLINE Vector load(const T* data) {
  return lockstep::load<Vector>(data);
}

// The points 0, +-P, +-Q and infinity. Compared with the usual 1 and 2, these keep the transformed numbers
// closer together and reduce the error to a third. All their products are exact.
constexpr float kP = 0.625f, kP2 = kP * kP, kP3 = kP2 * kP;
constexpr float kQ = 1.5f, kQ2 = kQ * kQ, kQ3 = kQ2 * kQ;
constexpr float kWeight0 = 1 / (kP2 * kQ2);
constexpr float kWeightP = 1 / (2 * kP2 * (kP2 - kQ2)), kWeightQ = 1 / (2 * kQ2 * (kQ2 - kP2));

// Each struct multiplies one line by a matrix: reads elements with stride From, writes with stride To.
struct InputLine {  // B^T
  static constexpr int kIn = 6, kOut = 6;
  template <int From, int To>
  static LOCKSTEP_WINOGRAD_INLINE void run(const Vector* x, Vector* v) {
    const Vector a = x[4 * From] - kQ2 * x[2 * From], b = kP * (x[3 * From] - kQ2 * x[From]);
    const Vector c = x[4 * From] - kP2 * x[2 * From], d = kQ * (x[3 * From] - kP2 * x[From]);
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
  template <int From, int To>
  static LOCKSTEP_WINOGRAD_INLINE void run(const Vector* m, Vector* y) {
    const Vector a = m[From] + m[2 * From], b = m[From] - m[2 * From];
    const Vector c = m[3 * From] + m[4 * From], d = m[3 * From] - m[4 * From];
    y[0] = m[0] + a + c;
    y[To] = kP * b + kQ * d;
    y[2 * To] = kP2 * a + kQ2 * c;
    y[3 * To] = kP3 * b + kQ3 * d + m[5 * From];
  }
};
struct OutputGradientLine {  // A
  static constexpr int kIn = 4, kOut = 6;
  template <int From, int To>
  static LOCKSTEP_WINOGRAD_INLINE void run(const Vector* y, Vector* m) {
    const Vector a = y[0] + kP2 * y[2 * From], b = kP * y[From] + kP3 * y[3 * From];
    const Vector c = y[0] + kQ2 * y[2 * From], d = kQ * y[From] + kQ3 * y[3 * From];
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
  template <int From, int To>
  static LOCKSTEP_WINOGRAD_INLINE void run(const Vector* g, Vector* u) {
    const Vector a = kWeightP * g[0] + kWeightP * kP2 * g[2 * From], b = kWeightP * kP * g[From];
    const Vector c = kWeightQ * g[0] + kWeightQ * kQ2 * g[2 * From], d = kWeightQ * kQ * g[From];
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
  template <int From, int To>
  static LOCKSTEP_WINOGRAD_INLINE void run(const Vector* u, Vector* g) {
    const Vector a = kWeightP * (u[From] + u[2 * From]), b = kWeightP * kP * (u[From] - u[2 * From]);
    const Vector c = kWeightQ * (u[3 * From] + u[4 * From]), d = kWeightQ * kQ * (u[3 * From] - u[4 * From]);
    g[0] = kWeight0 * u[0] + a + c;
    g[To] = b + d;
    g[2 * To] = kP2 * a + kQ2 * c + u[5 * From];
  }
};

// to (kOut x kOut) = L from (kIn x kIn) L^T
template <typename Line>
LOCKSTEP_WINOGRAD_INLINE void transform(const Vector* from, Vector* to) {
  Vector half[Line::kOut * Line::kIn];
#pragma GCC unroll 6
  for (int column = 0; column < Line::kIn; ++column)
    Line::template run<Line::kIn, Line::kIn>(from + column, half + column);
#pragma GCC unroll 6
  for (int row = 0; row < Line::kOut; ++row)
    Line::template run<1, 1>(half + row * Line::kIn, to + row * Line::kOut);
}

// A plane of an image: 16 channels, [height, width].
struct Plane {
  std::int64_t height = 0;
  std::int64_t width = 0;

  // The Size x Size elements starting at (row, column); zeros outside the plane.
  template <int Size, typename T>
  LOCKSTEP_WINOGRAD_INLINE void read(const T* plane, std::int64_t row, std::int64_t column,
                                     Vector* values) const {
    if (row >= 0 && column >= 0 && row + Size <= height && column + Size <= width) {
#pragma GCC unroll 6
      for (int r = 0; r < Size; ++r)
#pragma GCC unroll 6
        for (int c = 0; c < Size; ++c)
          values[r * Size + c] = load(plane + ((row + r) * width + column + c) * kBlock);
      return;
    }
    for (int r = 0; r < Size; ++r) {
      for (int c = 0; c < Size; ++c) {
        const std::int64_t y = row + r, x = column + c;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        values[r * Size + c] = inside ? load(plane + (y * width + x) * kBlock) : Vector{};
      }
    }
  }
};

LOCKSTEP_WINOGRAD_INLINE void store_points(const Vector* values, float* points, std::int64_t stride) {
#pragma GCC unroll 36
  for (int p = 0; p < kPoints; ++p) store(points + p * stride, values[p]);
}
LOCKSTEP_WINOGRAD_INLINE void load_points(const float* points, std::int64_t stride, Vector* values) {
#pragma GCC unroll 36
  for (int p = 0; p < kPoints; ++p) values[p] = load(points + p * stride);
}

}  // namespace lockstep::winograd
