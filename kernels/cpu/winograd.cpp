// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/winograd.h"

#include <algorithm>

#include <omp.h>

#include "core/buffer.h"
#include "kernels/cpu/winograd_transforms.h"
#include "kernels/functors.h"

#define INLINE LOCKSTEP_WINOGRAD_INLINE

namespace lockstep {
namespace {

using namespace winograd;

// One direction as a convolution from one tensor to another of 4x4 tiles: forward, or backward with the
// weights turned around.
struct Pass {
  std::int64_t batch, in_blocks, out_blocks;  // of 16 channels
  Plane in, out;
  std::int64_t padding;
  bool backward;  // weights are [in, out] in blocks, and turned

  std::int64_t tile_rows() const { return (out.height + 3) / 4; }
  std::int64_t tile_columns() const { return (out.width + 3) / 4; }
  std::int64_t tiles() const { return batch * tile_rows() * tile_columns(); }
  std::int64_t in_channels() const { return in_blocks * kBlock; }
  std::int64_t out_channels() const { return out_blocks * kBlock; }
};

Pass forward_pass(const ConvolutionShape& s) {
  return {.batch = s.batch,
          .in_blocks = s.in_channels / kBlock,
          .out_blocks = s.out_channels / kBlock,
          .in = {s.in_height, s.in_width},
          .out = {s.out_height(), s.out_width()},
          .padding = s.padding,
          .backward = false};
}
Pass backward_pass(const ConvolutionShape& s) {
  const Pass f = forward_pass(s);
  return {.batch = s.batch,
          .in_blocks = f.out_blocks,
          .out_blocks = f.in_blocks,
          .in = f.out,
          .out = f.in,
          .padding = 2 - s.padding,
          .backward = true};
}

struct Tile {
  std::int64_t image, row, column;
};
INLINE Tile tile_at(const Pass& p, std::int64_t tile) {
  const std::int64_t columns = p.tile_columns(), rows = p.tile_rows();
  return {tile / (rows * columns), tile / columns % rows * 4, tile % columns * 4};
}

// Transformed tensors are [36 points][rows][columns], with a cache line more between points: they would all
// fall into the same sets of the cache otherwise.
constexpr std::int64_t points_stride(std::int64_t rows, std::int64_t columns) {
  return rows * columns + kBlock;
}
constexpr std::int64_t points_floats(std::int64_t rows, std::int64_t columns) {
  return kPoints * points_stride(rows, columns);
}

// How many tiles a thread takes at a time, so that both transformed tensors fit the second-level cache.
std::int64_t tiles_at_a_time(const Pass& p, std::int64_t cache_bytes) {
  const std::int64_t tile_bytes =
      kPoints * static_cast<std::int64_t>(sizeof(float)) * (p.in_channels() + p.out_channels());
  return std::min(std::max<std::int64_t>(cache_bytes / tile_bytes / 6 * 6, 12), p.tiles());
}
constexpr std::int64_t kCacheOfTiles = 400 << 10;
constexpr std::int64_t kCacheOfGradientTiles = 1000 << 10;  // sums over tiles: the more, the better

// From so many weights on it pays to work block by block of the weights.
constexpr std::int64_t kManyWeights = 512 * 256;
bool by_weights(const Pass& p) {
  return p.in_channels() * p.out_channels() >= kManyWeights && p.in_blocks % 4 == 0 && p.out_blocks % 2 == 0;
}
constexpr std::int64_t kManyGradientWeights = 256 * 256;
bool gradient_by_weights(const Pass& p) {
  return p.in_channels() * p.out_channels() >= kManyGradientWeights && p.in_blocks % 2 == 0 &&
         p.out_blocks % 4 == 0;
}

#pragma GCC push_options
#if defined(__x86_64__)
#pragma GCC target("avx512f")
#endif

INLINE void input_tile(const Pass& p, const float* x, std::int64_t tile, std::int64_t block, float* points,
                       std::int64_t stride) {
  const Tile at = tile_at(p, tile);
  Vector values[kPoints], transformed[kPoints];
  p.in.read<6>(x + (at.image * p.in_blocks + block) * p.in.height * p.in.width * kBlock, at.row - p.padding,
               at.column - p.padding, values);
  transform<InputLine>(values, transformed);
  store_points(transformed, points, stride);
}

INLINE void output_gradient_tile(const Pass& p, const float* y, std::int64_t tile, std::int64_t block,
                                 float* points, std::int64_t stride) {
  const Tile at = tile_at(p, tile);
  Vector values[16], transformed[kPoints];
  p.out.read<4>(y + (at.image * p.out_blocks + block) * p.out.height * p.out.width * kBlock, at.row,
                at.column, values);
  transform<OutputGradientLine>(values, transformed);
  store_points(transformed, points, stride);
}

template <typename Finish>
INLINE void output_tile(const Pass& p, const float* points, std::int64_t stride, float* y, std::int64_t tile,
                        std::int64_t block, Finish finish) {
  const Tile at = tile_at(p, tile);
  Vector values[kPoints], outputs[16];
  load_points(points, stride, values);
  transform<OutputLine>(values, outputs);
  float* plane = y + (at.image * p.out_blocks + block) * p.out.height * p.out.width * kBlock;
  for (std::int64_t r = 0; r < 4 && at.row + r < p.out.height; ++r) {
    for (std::int64_t c = 0; c < 4 && at.column + c < p.out.width; ++c) {
      store(plane + ((at.row + r) * p.out.width + at.column + c) * kBlock, finish(outputs[r * 4 + c], block));
    }
  }
}

// 16 x 16 channels of weights to points[k * width] of each in-channel k of the pass.
INLINE void weight_block(const Pass& p, const float* weights, std::int64_t in_block, std::int64_t out_block,
                         float* points, std::int64_t width, std::int64_t stride) {
  const float* block =
      weights + (p.backward ? in_block * p.out_blocks + out_block : out_block * p.in_blocks + in_block) * 9 *
                    kBlock * kBlock;
  float turned[9 * kBlock * kBlock];
  if (p.backward) {
    for (int tap = 0; tap < 9; ++tap)
      for (int i = 0; i < kBlock; ++i)
        for (int o = 0; o < kBlock; ++o)
          turned[((8 - tap) * kBlock + o) * kBlock + i] = block[(tap * kBlock + i) * kBlock + o];
    block = turned;
  }
  for (int k = 0; k < kBlock; ++k) {
    Vector taps[9], transformed[kPoints];
#pragma GCC unroll 9
    for (int tap = 0; tap < 9; ++tap) taps[tap] = load(block + (tap * kBlock + k) * kBlock);
    transform<WeightLine>(taps, transformed);
    store_points(transformed, points + k * width, stride);
  }
}

// m[t][16 * B] (+)= sum over k of v[t][k] * u[k][16 * B], for T tiles.
struct TileProduct {
  std::int64_t depth;
  const float* v;
  std::int64_t v_stride;
  const float* u;
  std::int64_t u_stride;
  float* m;
  std::int64_t m_stride;
  bool add;
};
template <int T, int B>
INLINE void multiply(const TileProduct& a, std::int64_t tile) {
  const float* v = a.v + tile * a.v_stride;
  float* m = a.m + tile * a.m_stride;
  Vector sums[T][B] = {};
  if (a.add) {
#pragma GCC unroll 12
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[t][b] = load(m + t * a.m_stride + b * kBlock);
  }
  for (std::int64_t k = 0; k < a.depth; ++k) {
    Vector u[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) u[b] = load(a.u + k * a.u_stride + b * kBlock);
#pragma GCC unroll 12
    for (int t = 0; t < T; ++t) {
      const float factor = v[t * a.v_stride + k];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[t][b] += factor * u[b];
    }
  }
#pragma GCC unroll 12
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) store(m + t * a.m_stride + b * kBlock, sums[t][b]);
}
template <int B>
INLINE void multiply_tiles(const TileProduct& a, std::int64_t tiles) {
  constexpr int kTiles = B == 2 ? 12 : 6;  // 24 sums stay in registers
  std::int64_t tile = 0;
  for (; tile + kTiles <= tiles; tile += kTiles) multiply<kTiles, B>(a, tile);
  for (; tile + 4 <= tiles; tile += 4) multiply<4, B>(a, tile);
  for (; tile < tiles; ++tile) multiply<1, B>(a, tile);
}

// u[i][16 * B] (+)= sum over tiles of v[tile][i] * m[tile][16 * B], for I in-channels.
struct GradientProduct {
  std::int64_t tiles;
  const float* v;
  std::int64_t v_stride;
  const float* m;
  std::int64_t m_stride;
  float* u;
  std::int64_t u_stride;
  bool add;
};
template <int I, int B>
INLINE void multiply(const GradientProduct& a, std::int64_t in) {
  float* u = a.u + in * a.u_stride;
  Vector sums[I][B] = {};
  for (std::int64_t t = 0; t < a.tiles; ++t) {
    Vector m[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) m[b] = load(a.m + t * a.m_stride + b * kBlock);
#pragma GCC unroll 6
    for (int i = 0; i < I; ++i) {
      const float factor = a.v[t * a.v_stride + in + i];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[i][b] += factor * m[b];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      float* place = u + i * a.u_stride + b * kBlock;
      store(place, a.add ? load(place) + sums[i][b] : sums[i][b]);
    }
}
template <int B>
INLINE void multiply_channels(const GradientProduct& a, std::int64_t channels) {
  std::int64_t in = 0;
  for (; in < channels; in += 4) multiply<4, B>(a, in);  // channels come in sixteens
}

// Calls product.template operator()<blocks>(first block) for out-blocks in fours, and the rest one by one.
template <typename Product>
INLINE void in_fours(std::int64_t blocks, Product product) {
  std::int64_t block = 0;
  for (; block + 4 <= blocks; block += 4) product.template operator()<4>(block);
  for (; block < blocks; ++block) product.template operator()<1>(block);
}

// Transformed weights as in_fours reads them, each group of out-blocks for itself: [in][16 * blocks].
struct WeightPlace {
  std::int64_t offset, width;
};
INLINE WeightPlace weight_place(const Pass& p, std::int64_t in_block, std::int64_t out_block) {
  const bool in_four = out_block < p.out_blocks / 4 * 4;
  const std::int64_t first = in_four ? out_block / 4 * 4 : out_block, width = in_four ? 4 * kBlock : kBlock;
  return {(first * p.in_channels() + in_block * width + out_block - first) * kBlock, width};
}

template <typename Finish>
void convolve_by_tiles(const Pass& p, const float* x, const float* weights, float* y, float* scratch,
                       int threads, Finish finish) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfTiles);
  const std::int64_t u_stride = points_stride(in, out), v_stride = points_stride(some, in),
                     m_stride = points_stride(some, out);
  float* const u = scratch;
#pragma omp parallel num_threads(threads)
  {
    float* const v = u + kPoints * u_stride + omp_get_thread_num() * kPoints * (v_stride + m_stride);
    float* const m = v + kPoints * v_stride;
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t o = 0; o < p.out_blocks; ++o) {
      for (std::int64_t i = 0; i < p.in_blocks; ++i) {
        const WeightPlace place = weight_place(p, i, o);
        weight_block(p, weights, i, o, u + place.offset, place.width, u_stride);
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t first = 0; first < tiles; first += some) {
      const std::int64_t count = std::min(some, tiles - first);
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t i = 0; i < p.in_blocks; ++i)
          input_tile(p, x, first + t, i, v + t * in + i * kBlock, v_stride);
      for (std::int64_t point = 0; point < kPoints; ++point) {
        in_fours(
            p.out_blocks, [&]<int B>(std::int64_t o) __attribute__((always_inline)) {
              multiply_tiles<B>({in, v + point * v_stride, in, u + point * u_stride + o * kBlock * in,
                                 B * kBlock, m + point * m_stride + o * kBlock, out, false},
                                count);
            });
      }
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t o = 0; o < p.out_blocks; ++o)
          output_tile(p, m + t * out + o * kBlock, m_stride, y, first + t, o, finish);
    }
  }
}

// Two out-blocks and four in-blocks of the weights at a time.
constexpr std::int64_t kOutBlocks = 2, kInBlocks = 4;

template <typename Finish>
void convolve_by_weights(const Pass& p, const float* x, const float* weights, float* y, float* scratch,
                         int threads, Finish finish) {
  const std::int64_t in = p.in_channels(), tiles = p.tiles();
  constexpr std::int64_t kOut = kOutBlocks * kBlock, kDepth = kInBlocks * kBlock;
  constexpr std::int64_t kUStride = points_stride(kDepth, kOut);
  const std::int64_t v_stride = points_stride(tiles, in), m_stride = points_stride(tiles, kOut);
  float* const v = scratch;
#pragma omp parallel num_threads(threads)
  {
    float* const u = v + kPoints * v_stride + omp_get_thread_num() * kPoints * (kUStride + m_stride);
    float* const m = u + kPoints * kUStride;
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t t = 0; t < tiles; ++t)
      for (std::int64_t i = 0; i < p.in_blocks; ++i)
        input_tile(p, x, t, i, v + t * in + i * kBlock, v_stride);
#pragma omp for schedule(static)
    for (std::int64_t o = 0; o < p.out_blocks; o += kOutBlocks) {
      for (std::int64_t i = 0; i < p.in_blocks; i += kInBlocks) {
        for (std::int64_t k = 0; k < kInBlocks; ++k)
          for (std::int64_t j = 0; j < kOutBlocks; ++j)
            weight_block(p, weights, i + k, o + j, u + (k * kOut + j) * kBlock, kOut, kUStride);
        for (std::int64_t point = 0; point < kPoints; ++point)
          multiply_tiles<kOutBlocks>({kDepth, v + point * v_stride + i * kBlock, in, u + point * kUStride,
                                      kOut, m + point * m_stride, kOut, i > 0},
                                     tiles);
      }
      for (std::int64_t t = 0; t < tiles; ++t)
        for (std::int64_t j = 0; j < kOutBlocks; ++j)
          output_tile(p, m + t * kOut + j * kBlock, m_stride, y, t, o + j, finish);
    }
  }
}

// Sums `parts` transformed gradients `part` floats apart.
INLINE void weight_gradient(const float* points, std::int64_t stride, int parts, std::int64_t part,
                            float* taps) {
  Vector sum[kPoints], gradient[9];
  for (int point = 0; point < kPoints; ++point) {
    sum[point] = load(points + point * stride);
    for (int i = 1; i < parts; ++i) sum[point] += load(points + i * part + point * stride);
  }
  transform<WeightGradientLine>(sum, gradient);
#pragma GCC unroll 9
  for (int tap = 0; tap < 9; ++tap) store(taps + tap * kBlock * kBlock, gradient[tap]);
}
INLINE float* taps_of(const Pass& p, float* weights, std::int64_t in_channel, std::int64_t out_block) {
  const std::int64_t block = out_block * p.in_blocks + in_channel / kBlock;
  return weights + (block * 9 * kBlock + in_channel % kBlock) * kBlock;
}

void gradient_by_tiles(const Pass& p, const float* x, const float* y, float* weights, float* scratch,
                       int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfGradientTiles);
  const std::int64_t u_stride = points_stride(in, out), v_stride = points_stride(some, in),
                     m_stride = points_stride(some, out);
  const std::int64_t chunks = (tiles + some - 1) / some;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, chunks));
#pragma omp parallel num_threads(team)
  {
    const int parts = omp_get_num_threads();
    float* const u = scratch + omp_get_thread_num() * kPoints * u_stride;
    float* const v =
        scratch + parts * kPoints * u_stride + omp_get_thread_num() * kPoints * (v_stride + m_stride);
    float* const m = v + kPoints * v_stride;
    bool add = false;
#pragma omp for schedule(static)
    for (std::int64_t first = 0; first < tiles; first += some) {
      const std::int64_t count = std::min(some, tiles - first);
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t i = 0; i < p.in_blocks; ++i)
          input_tile(p, x, first + t, i, v + t * in + i * kBlock, v_stride);
        for (std::int64_t o = 0; o < p.out_blocks; ++o)
          output_gradient_tile(p, y, first + t, o, m + t * out + o * kBlock, m_stride);
      }
      for (std::int64_t point = 0; point < kPoints; ++point) {
        in_fours(
            p.out_blocks, [&]<int B>(std::int64_t o) __attribute__((always_inline)) {
              multiply_channels<B>({count, v + point * v_stride, in, m + point * m_stride + o * kBlock, out,
                                    u + point * u_stride + o * kBlock, out, add},
                                   in);
            });
      }
      add = true;
    }
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t o = 0; o < p.out_blocks; ++o)
        weight_gradient(scratch + i * out + o * kBlock, u_stride, parts, kPoints * u_stride,
                        taps_of(p, weights, i, o));
  }
}

// Two in-blocks and four out-blocks of the weights at a time.
constexpr std::int64_t kGradientInBlocks = 2, kGradientOutBlocks = 4;
constexpr std::int64_t kGradientStride =
    points_stride(kGradientInBlocks * kBlock, kGradientOutBlocks* kBlock);

void gradient_by_weights(const Pass& p, const float* x, const float* y, float* weights, float* scratch,
                         int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  constexpr std::int64_t kIn = kGradientInBlocks * kBlock, kOut = kGradientOutBlocks * kBlock;
  const std::int64_t v_stride = points_stride(tiles, in), m_stride = points_stride(tiles, out);
  float* const v = scratch;
  float* const m = v + kPoints * v_stride;
#pragma omp parallel num_threads(threads)
  {
    float* const u = m + kPoints * m_stride + omp_get_thread_num() * kPoints * kGradientStride;
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < tiles; ++t) {
      for (std::int64_t i = 0; i < p.in_blocks; ++i)
        input_tile(p, x, t, i, v + t * in + i * kBlock, v_stride);
      for (std::int64_t o = 0; o < p.out_blocks; ++o)
        output_gradient_tile(p, y, t, o, m + t * out + o * kBlock, m_stride);
    }
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t i = 0; i < in; i += kIn) {
      for (std::int64_t o = 0; o < p.out_blocks; o += kGradientOutBlocks) {
        for (std::int64_t point = 0; point < kPoints; ++point)
          multiply_channels<kGradientOutBlocks>(
              {tiles, v + point * v_stride + i, in, m + point * m_stride + o * kBlock, out,
               u + point * kGradientStride, kOut, false},
              kIn);
        for (std::int64_t k = 0; k < kIn; ++k)
          for (std::int64_t j = 0; j < kGradientOutBlocks; ++j)
            weight_gradient(u + k * kOut + j * kBlock, kGradientStride, 1, 0,
                            taps_of(p, weights, i + k, o + j));
      }
    }
  }
}

void sum_of_channels(const Pass& p, const float* y, float* sums, int threads) {
  const std::int64_t positions = p.out.height * p.out.width;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t o = 0; o < p.out_blocks; ++o) {
    Vector total = {};
    for (std::int64_t n = 0; n < p.batch; ++n) {
      const float* plane = y + (n * p.out_blocks + o) * positions * kBlock;
      Vector sum = {};
      for (std::int64_t i = 0; i < positions; ++i) sum += load(plane + i * kBlock);
      total += sum;
    }
    store(sums + o * kBlock, total);
  }
}

template <typename Finish>
void convolve(const Pass& p, const float* x, const float* weights, float* y, void* scratch, int threads,
              Finish finish) {
  auto* memory = static_cast<float*>(scratch);
  by_weights(p) ? convolve_by_weights(p, x, weights, y, memory, threads, finish)
                : convolve_by_tiles(p, x, weights, y, memory, threads, finish);
}

template <typename Activate>
void forward_with(const Pass& p, const float* x, const float* weights, const float* bias, float* y,
                  void* scratch, int threads, Activate activate) {
  convolve(
      p, x, weights, y, scratch,
      threads, [=](const Vector& value, std::int64_t block) __attribute__((always_inline)) {
        return activate(bias == nullptr ? value : value + load(bias + block * kBlock));
      });
}

#pragma GCC pop_options

std::size_t convolve_scratch(const Pass& p, int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfTiles);
  const std::int64_t floats =
      by_weights(p)
          ? points_floats(tiles, in) + threads * (points_floats(kInBlocks * kBlock, kOutBlocks * kBlock) +
                                                  points_floats(tiles, kOutBlocks * kBlock))
          : points_floats(in, out) + threads * (points_floats(some, in) + points_floats(some, out));
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

bool WinogradConvolution::supports(const ConvolutionShape& s) {
#if defined(__x86_64__)
  const bool processor = __builtin_cpu_supports("avx512f") != 0;
#else
  const bool processor = false;  // works, but nobody has measured it
#endif
  return processor && s.kernel == 3 && s.stride == 1 && s.dilation == 1 && s.groups == 1 && s.padding <= 2 &&
         s.in_channels % kBlock == 0 && s.out_channels % kBlock == 0;
}

WinogradConvolution::WinogradConvolution(const ConvolutionShape& shape)
    : shape_(shape), threads_(omp_get_max_threads()) {}

std::size_t WinogradConvolution::forward_scratch_bytes() const {
  return convolve_scratch(forward_pass(shape_), threads_);
}
std::size_t WinogradConvolution::backward_data_scratch_bytes() const {
  return convolve_scratch(backward_pass(shape_), threads_);
}
std::size_t WinogradConvolution::backward_weights_scratch_bytes() const {
  const Pass p = forward_pass(shape_);
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfGradientTiles);
  const std::int64_t floats =
      gradient_by_weights(p)
          ? points_floats(tiles, in) + points_floats(tiles, out) + threads_ * kPoints * kGradientStride
          : threads_ * (points_floats(in, out) + points_floats(some, in) + points_floats(some, out));
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void WinogradConvolution::forward(const float* x, const float* weights, const float* bias, float* y,
                                  void* scratch) const {
  const Pass p = forward_pass(shape_);
  with_activation(shape_.activation,
                  [&](auto activate) { forward_with(p, x, weights, bias, y, scratch, threads_, activate); });
}

void WinogradConvolution::backward_data(const float* y_gradient, const float* weights, float* x_gradient,
                                        void* scratch) const {
  forward_with(backward_pass(shape_), y_gradient, weights, nullptr, x_gradient, scratch, threads_,
               Identity());
}

void WinogradConvolution::backward_weights(const float* x, const float* y_gradient, float* weights_gradient,
                                           float* bias_gradient, void* scratch) const {
  const Pass p = forward_pass(shape_);
  auto* memory = static_cast<float*>(scratch);
  gradient_by_weights(p) ? gradient_by_weights(p, x, y_gradient, weights_gradient, memory, threads_)
                         : gradient_by_tiles(p, x, y_gradient, weights_gradient, memory, threads_);
  if (bias_gradient != nullptr) sum_of_channels(p, y_gradient, bias_gradient, threads_);
}

}  // namespace lockstep
