// SPDX-License-Identifier: Apache-2.0
//
// The weight gradient: the product of the transformed input and output gradient, summed over tiles.
#include <algorithm>

#include <omp.h>

#include "kernels/cpu/deal.h"
#include "kernels/cpu/winograd.h"
#include "kernels/cpu/winograd_tiles.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

using namespace winograd;

constexpr std::int64_t kCacheOfGradientTiles = 1000 << 10;  // more tiles at a time are faster

// From this many weights on, processing the weights block by block is faster.
constexpr std::int64_t kManyGradientWeights = 256 * 256;
// The channels of the weights at a time.
constexpr std::int64_t kInAtATime = 32;
template <typename V>
constexpr std::int64_t kOutAtATime = kGroup<V>* kBlock<V>;

template <typename V>
bool gradient_by_weights(const Pass<V>& p) {
  return p.in_channels() * p.out_channels() >= kManyGradientWeights && p.in_channels() % kInAtATime == 0 &&
         p.out_channels() % kOutAtATime<V> == 0;
}

template <typename V, typename T>
INLINE void output_gradient_tile(const Pass<V>& p, const T* y, std::int64_t tile, std::int64_t block,
                                 float* points, std::int64_t stride) {
  const auto plane = [&](const Tile& at) {
    return y + (at.image * p.out_blocks + block) * p.out.height * p.out.width * kBlock<V>;
  };
  const Tile at = tile_at(p, tile);
  if (tile + 1 < p.tiles()) {
    const Tile next = tile_at(p, tile + 1);
    p.out.template prefetch<4, V>(plane(next), next.row, next.column);
  }
  V values[16], transformed[kPoints];
  p.out.template read<4>(plane(at), at.row, at.column, values);
  transform<OutputGradientLine>(values, transformed);
  store_points(transformed, points, stride);
}

// Sums `parts` transformed gradients, which are `part` floats apart, and transforms the sum back to taps.
template <typename V>
INLINE void weight_gradient(const float* points, std::int64_t stride, int parts, std::int64_t part,
                            float* taps) {
  V sum[kPoints], gradient[9];
  for (int point = 0; point < kPoints; ++point) {
    sum[point] = load<V>(points + point * stride);
    for (int i = 1; i < parts; ++i) sum[point] += load<V>(points + i * part + point * stride);
  }
  transform<WeightGradientLine>(sum, gradient);
#pragma GCC unroll 9
  for (int tap = 0; tap < 9; ++tap) store(taps + tap * kBlock<V> * kBlock<V>, gradient[tap]);
}
template <typename V>
INLINE float* taps_of(const Pass<V>& p, float* weights, std::int64_t in_channel, std::int64_t out_block) {
  const std::int64_t block = out_block * p.in_blocks + in_channel / kBlock<V>;
  return weights + (block * 9 * kBlock<V> + in_channel % kBlock<V>)*kBlock<V>;
}

template <typename V, typename T>
void gradient_by_tiles(const Pass<V>& p, const T* x, const T* y, float* weights, float* scratch,
                       int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfGradientTiles);
  const std::int64_t u_stride = points_stride(in, out), v_stride = points_stride(some, in),
                     m_stride = points_stride(some, out);
  const std::int64_t chunks = chunks_of(tiles, some);
  // Each part of the tiles has its own sum, independent of the thread that computes it.
  const int parts = static_cast<int>(std::min<std::int64_t>(threads, chunks));
  deal(parts, threads, [&](std::int64_t part) {
    float* const u = scratch + part * kPoints * u_stride;
    float* const v = scratch + parts * kPoints * u_stride + part * kPoints * (v_stride + m_stride);
    float* const m = v + kPoints * v_stride;
    const std::int64_t begin = chunks * part / parts, end = chunks * (part + 1) / parts;
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * some, count = std::min(some, tiles - first);
      with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
        for (std::int64_t t = 0; t < count; ++t) {
          for (std::int64_t i = 0; i < p.in_blocks; ++i)
            input_tile(p, x, first + t, i, v + t * in + i * kBlock<V>, v_stride);
          for (std::int64_t o = 0; o < p.out_blocks; ++o)
            output_gradient_tile(p, y, first + t, o, m + t * out + o * kBlock<V>, m_stride);
        }
      });
      for (std::int64_t point = 0; point < kPoints; ++point) {
        in_groups<V>(p.out_blocks, [&]<int B>(std::int64_t o) {
          multiply_channels<V, B>({count, v + point * v_stride, in, m + point * m_stride + o * kBlock<V>, out,
                                   u + point * u_stride + o * kBlock<V>, out, chunk > begin},
                                  in);
        });
      }
    }
  });
  constexpr std::int64_t kRows = 4;  // in-channels at a time; divides a block
  deal(in / kRows, threads, [&](std::int64_t rows) {
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t i = rows * kRows; i < (rows + 1) * kRows; ++i)
        for (std::int64_t o = 0; o < p.out_blocks; ++o)
          weight_gradient<V>(scratch + i * out + o * kBlock<V>, u_stride, parts, kPoints * u_stride,
                             taps_of(p, weights, i, o));
    });
  });
}

template <typename V>
constexpr std::int64_t kGradientStride = points_stride(kInAtATime, kOutAtATime<V>);

template <typename V, typename T>
void gradient_by_weights(const Pass<V>& p, const T* x, const T* y, float* weights, float* scratch,
                         int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t v_stride = points_stride(tiles, in), m_stride = points_stride(tiles, out);
  float* const v = scratch;
  float* const m = v + kPoints * v_stride;
  deal(tiles, threads, [&](std::int64_t t) {
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t i = 0; i < p.in_blocks; ++i)
        input_tile(p, x, t, i, v + t * in + i * kBlock<V>, v_stride);
      for (std::int64_t o = 0; o < p.out_blocks; ++o)
        output_gradient_tile(p, y, t, o, m + t * out + o * kBlock<V>, m_stride);
    });
  });
  const std::int64_t groups = p.out_blocks / kGroup<V>;
  deal(in / kInAtATime * groups, threads, [&](std::int64_t piece) {
    float* const u = m + kPoints * m_stride + omp_get_thread_num() * kPoints * kGradientStride<V>;
    const std::int64_t i = piece / groups * kInAtATime, o = piece % groups * kGroup<V>;
    for (std::int64_t point = 0; point < kPoints; ++point)
      multiply_channels<V, kGroup<V>>(
          {tiles, v + point * v_stride + i, in, m + point * m_stride + o * kBlock<V>, out,
           u + point * kGradientStride<V>, kOutAtATime<V>, false},
          kInAtATime);
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t k = 0; k < kInAtATime; ++k)
        for (std::int64_t j = 0; j < kGroup<V>; ++j)
          weight_gradient<V>(u + k * kOutAtATime<V> + j * kBlock<V>, kGradientStride<V>, 1, 0,
                             taps_of(p, weights, i + k, o + j));
    });
  });
}

template <typename V, typename T>
void sum_of_channels(const Pass<V>& p, const T* y, float* sums, int threads) {
  const std::int64_t positions = p.out.height * p.out.width;
  deal(p.out_blocks, threads, [&](std::int64_t o) {
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      V total = {};
      for (std::int64_t n = 0; n < p.batch; ++n) {
        const T* plane = y + (n * p.out_blocks + o) * positions * kBlock<V>;
        V sum = {};
        for (std::int64_t i = 0; i < positions; ++i) sum += load<V>(plane + i * kBlock<V>);
        total += sum;
      }
      store(sums + o * kBlock<V>, total);
    });
  });
}

}  // namespace

std::size_t WinogradConvolution::backward_weights_scratch_bytes() const {
  const std::int64_t floats = with_block(block_, [&]<typename V>() {
    const Pass p = forward_pass<V>(shape_);
    const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
    const std::int64_t some = tiles_at_a_time(p, kCacheOfGradientTiles);
    return gradient_by_weights(p) ? points_floats(tiles, in) + points_floats(tiles, out) +
                                        planned_threads_ * kPoints * kGradientStride<V>
                                  : planned_threads_ * (points_floats(in, out) + points_floats(some, in) +
                                                        points_floats(some, out));
  });
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void WinogradConvolution::backward_weights(const AffineOperands& o) const {
  auto* scratch = static_cast<float*>(o.scratch);
  auto* gradient = static_cast<float*>(const_cast<void*>(o.w));
  with_block(block_, [&]<typename V>() {
    with_storage(type_, [&]<typename T>() {
      const Pass p = forward_pass<V>(shape_);
      const T* x = static_cast<const T*>(o.x);
      const T* y = static_cast<const T*>(o.y);
      gradient_by_weights(p) ? gradient_by_weights(p, x, y, gradient, scratch, threads())
                             : gradient_by_tiles(p, x, y, gradient, scratch, threads());
      if (o.bias != nullptr) sum_of_channels(p, y, o.bias, threads());
    });
  });
}

}  // namespace lockstep
