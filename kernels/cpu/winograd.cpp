// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/winograd.h"

#include <algorithm>

#include <omp.h>

#include "core/system/processors.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/winograd_tiles.h"
#include "kernels/functors.h"

#define INLINE LOCKSTEP_WINOGRAD_INLINE

namespace lockstep {
namespace {

using namespace winograd;

constexpr std::int64_t kCacheOfTiles = 400 << 10;

// From this many weights on, processing the weights block by block is faster.
constexpr std::int64_t kManyWeights = 512 * 256;
bool by_weights(const Pass& p) {
  return p.in_channels() * p.out_channels() >= kManyWeights && p.in_blocks % 4 == 0 && p.out_blocks % 2 == 0;
}

LOCKSTEP_WINOGRAD_BEGIN

template <typename T, typename Finish>
INLINE void output_tile(const Pass& p, const float* points, std::int64_t stride, T* y, std::int64_t tile,
                        std::int64_t block, Finish finish) {
  const Tile at = tile_at(p, tile);
  Vector values[kPoints], outputs[16];
  load_points(points, stride, values);
  transform<OutputLine>(values, outputs);
  T* plane = y + (at.image * p.out_blocks + block) * p.out.height * p.out.width * kBlock;
  for (std::int64_t r = 0; r < 4 && at.row + r < p.out.height; ++r) {
    for (std::int64_t c = 0; c < 4 && at.column + c < p.out.width; ++c) {
      store(plane + ((at.row + r) * p.out.width + at.column + c) * kBlock, finish(outputs[r * 4 + c], block));
    }
  }
}

// Transforms 16 x 16 channels of weights, to points[k * width] for in-channel k of the pass.
template <typename T>
INLINE void weight_points(const T* block, float* points, std::int64_t width, std::int64_t stride) {
  for (int k = 0; k < kBlock; ++k) {
    Vector taps[9], transformed[kPoints];
#pragma GCC unroll 9
    for (int tap = 0; tap < 9; ++tap) taps[tap] = load(block + (tap * kBlock + k) * kBlock);
    transform<WeightLine>(taps, transformed);
    store_points(transformed, points + k * width, stride);
  }
}

// Rotates the taps by 180 degrees and transposes the channels.
template <typename T>
INLINE void turn(const T* block, float* turned) {
  for (int tap = 0; tap < 9; ++tap) {
    float rows[kBlock * kBlock];
    for (int i = 0; i < kBlock; ++i) store(rows + i * kBlock, load(block + (tap * kBlock + i) * kBlock));
    for (int i = 0; i < kBlock; ++i)
      for (int o = 0; o < kBlock; ++o) turned[((8 - tap) * kBlock + o) * kBlock + i] = rows[i * kBlock + o];
  }
}

template <typename T>
INLINE void weight_block(const Pass& p, const T* weights, std::int64_t in_block, std::int64_t out_block,
                         float* points, std::int64_t width, std::int64_t stride) {
  const std::int64_t place =
      p.backward ? in_block * p.out_blocks + out_block : out_block * p.in_blocks + in_block;
  const T* block = weights + place * 9 * kBlock * kBlock;
  if (!p.backward) return weight_points(block, points, width, stride);
  float turned[9 * kBlock * kBlock];
  turn(block, turned);
  weight_points(turned, points, width, stride);
}

// Transformed weights in the order in which in_fours reads them, one array per group of out-blocks: [in][16 *
// blocks].
struct WeightPlace {
  std::int64_t offset, width;
};
INLINE WeightPlace weight_place(const Pass& p, std::int64_t in_block, std::int64_t out_block) {
  const bool in_four = out_block < p.out_blocks / 4 * 4;
  const std::int64_t first = in_four ? out_block / 4 * 4 : out_block, width = in_four ? 4 * kBlock : kBlock;
  return {(first * p.in_channels() + in_block * width + out_block - first) * kBlock, width};
}

template <typename T, typename Finish>
void convolve_by_tiles(const Pass& p, const T* x, const T* weights, T* y, float* scratch, int threads,
                       Finish finish) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfTiles);
  const std::int64_t u_stride = points_stride(in, out), v_stride = points_stride(some, in),
                     m_stride = points_stride(some, out);
  float* const u = scratch;
  deal(p.out_blocks * p.in_blocks, threads, [&](std::int64_t block) {
    const std::int64_t o = block / p.in_blocks, i = block % p.in_blocks;
    const WeightPlace place = weight_place(p, i, o);
    weight_block(p, weights, i, o, u + place.offset, place.width, u_stride);
  });
  deal(chunks_of(tiles, some), threads, [&](std::int64_t chunk) {
    float* const v = u + kPoints * u_stride + omp_get_thread_num() * kPoints * (v_stride + m_stride);
    float* const m = v + kPoints * v_stride;
    const std::int64_t first = chunk * some, count = std::min(some, tiles - first);
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
  });
}

// Two out-blocks and four in-blocks of the weights at a time.
constexpr std::int64_t kOutBlocks = 2, kInBlocks = 4;

template <typename T, typename Finish>
void convolve_by_weights(const Pass& p, const T* x, const T* weights, T* y, float* scratch, int threads,
                         Finish finish) {
  const std::int64_t in = p.in_channels(), tiles = p.tiles();
  constexpr std::int64_t kOut = kOutBlocks * kBlock, kDepth = kInBlocks * kBlock;
  constexpr std::int64_t kUStride = points_stride(kDepth, kOut);
  const std::int64_t v_stride = points_stride(tiles, in), m_stride = points_stride(tiles, kOut);
  float* const v = scratch;
  deal(tiles, threads, [&](std::int64_t t) {
    for (std::int64_t i = 0; i < p.in_blocks; ++i) input_tile(p, x, t, i, v + t * in + i * kBlock, v_stride);
  });
  deal(p.out_blocks / kOutBlocks, threads, [&](std::int64_t some) {
    float* const u = v + kPoints * v_stride + omp_get_thread_num() * kPoints * (kUStride + m_stride);
    float* const m = u + kPoints * kUStride;
    const std::int64_t o = some * kOutBlocks;
    for (std::int64_t i = 0; i < p.in_blocks; i += kInBlocks) {
      for (std::int64_t k = 0; k < kInBlocks; ++k)
        for (std::int64_t j = 0; j < kOutBlocks; ++j)
          weight_block(p, weights, i + k, o + j, u + (k * kOut + j) * kBlock, kOut, kUStride);
      for (std::int64_t point = 0; point < kPoints; ++point)
        multiply_tiles<kOutBlocks>({kDepth, v + point * v_stride + i * kBlock, in, u + point * kUStride, kOut,
                                    m + point * m_stride, kOut, i > 0},
                                   tiles);
    }
    for (std::int64_t t = 0; t < tiles; ++t)
      for (std::int64_t j = 0; j < kOutBlocks; ++j)
        output_tile(p, m + t * kOut + j * kBlock, m_stride, y, t, o + j, finish);
  });
}

template <typename T, typename Finish>
void convolve(const Pass& p, const T* x, const T* weights, T* y, void* scratch, int threads, Finish finish) {
  auto* memory = static_cast<float*>(scratch);
  by_weights(p) ? convolve_by_weights(p, x, weights, y, memory, threads, finish)
                : convolve_by_tiles(p, x, weights, y, memory, threads, finish);
}

template <typename T, typename Activate>
void forward_with(const Pass& p, const T* x, const T* weights, const float* bias, T* y, void* scratch,
                  int threads, Activate activate) {
  convolve(
      p, x, weights, y, scratch,
      threads, [=](const Vector& value, std::int64_t block) __attribute__((always_inline)) {
        return activate(bias == nullptr ? value : value + load(bias + block * kBlock));
      });
}

LOCKSTEP_WINOGRAD_END

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
  return instruction_set() == InstructionSet::avx512 && s.kernel == 3 && s.stride == 1 && s.dilation == 1 &&
         s.groups == 1 && s.padding <= 2 && s.in_channels % kBlock == 0 && s.out_channels % kBlock == 0;
}

WinogradConvolution::WinogradConvolution(const ConvolutionShape& shape, DType type)
    : shape_(shape), type_(type), threads_(omp_get_max_threads()) {}

std::size_t WinogradConvolution::forward_scratch_bytes() const {
  return convolve_scratch(forward_pass(shape_), threads_);
}
std::size_t WinogradConvolution::backward_data_scratch_bytes() const {
  return convolve_scratch(backward_pass(shape_), threads_);
}

void WinogradConvolution::forward(const AffineOperands& o) const {
  const Pass p = forward_pass(shape_);
  with_element(type_, [&](auto element) {
    using T = typename decltype(element)::type;
    auto* y = static_cast<T*>(const_cast<void*>(o.y));
    with_activation(shape_.activation, [&](auto activate) {
      forward_with(p, static_cast<const T*>(o.x), static_cast<const T*>(o.w), o.bias, y, o.scratch, threads_,
                   activate);
    });
  });
}

void WinogradConvolution::backward_data(const AffineOperands& o) const {
  const Pass p = backward_pass(shape_);
  with_element(type_, [&](auto element) {
    using T = typename decltype(element)::type;
    auto* x = static_cast<T*>(const_cast<void*>(o.x));
    forward_with(p, static_cast<const T*>(o.y), static_cast<const T*>(o.w), nullptr, x, o.scratch, threads_,
                 Identity());
  });
}

}  // namespace lockstep
