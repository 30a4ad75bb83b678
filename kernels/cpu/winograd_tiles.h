// SPDX-License-Identifier: Apache-2.0
//
// Code shared by the directions of WinogradConvolution: an image as 4x4 tiles, transformed tensors, and the
// products summed at each point. For winograd*.cpp only.
#pragma once

#include <algorithm>

#include "core/system/processors.h"
#include "kernels/affine.h"
#include "kernels/cpu/winograd_transforms.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep::winograd {

// Runs body(), which is inlined, compiled for the instruction set with registers of V. Body captures by copy.
template <typename V, typename Body>
void with_registers_of(const Body& body) {
  // A local copy, so that no store can change what it captured.
  const auto copied = [&body]() LOCKSTEP_PROCESSOR_BODY {
    const Body local = body;
    local();
  };
  run_compiled_for<sizeof(V) == 64   ? InstructionSet::avx512
                   : sizeof(V) == 32 ? InstructionSet::avx2
                                     : InstructionSet::baseline>(copied);
}

// Calls function.operator()<V>() with the vector type that holds a block of WinogradConvolution's channels.
template <typename F>
auto with_block(std::int64_t block, F function) {
#if defined(__aarch64__)
  if (block == 4) return function.template operator()<Lanes<4>::Float>();
#endif
  return block == 16 ? function.template operator()<Lanes<16>::Float>()
                     : function.template operator()<Lanes<8>::Float>();
}

// Calls function.operator()<T>() with the type of activations and weights.
template <typename F>
void with_storage(DType type, F function) {
  type == DType::bf16 ? function.template operator()<BFloat16>() : function.template operator()<float>();
}

// One direction as a convolution between tensors of 4x4 tiles: forward, or backward with the weights rotated
// by 180 degrees and transposed.
template <typename V>
struct Pass {
  std::int64_t batch, in_blocks, out_blocks;  // of kBlock<V> channels
  Plane in, out;
  std::int64_t padding;
  bool backward;  // weights have [in, out] blocks, and are rotated

  std::int64_t tile_rows() const { return (out.height + 3) / 4; }
  std::int64_t tile_columns() const { return (out.width + 3) / 4; }
  std::int64_t tiles() const { return batch * tile_rows() * tile_columns(); }
  std::int64_t in_channels() const { return in_blocks * kBlock<V>; }
  std::int64_t out_channels() const { return out_blocks * kBlock<V>; }
};

template <typename V>
Pass<V> forward_pass(const ConvolutionShape& s) {
  return {.batch = s.batch,
          .in_blocks = s.in_channels / kBlock<V>,
          .out_blocks = s.out_channels / kBlock<V>,
          .in = {s.in_height, s.in_width},
          .out = {s.out_height(), s.out_width()},
          .padding = s.padding,
          .backward = false};
}
template <typename V>
Pass<V> backward_pass(const ConvolutionShape& s) {
  const Pass<V> f = forward_pass<V>(s);
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
template <typename V>
INLINE Tile tile_at(const Pass<V>& p, std::int64_t tile) {
  const std::int64_t columns = p.tile_columns(), rows = p.tile_rows();
  return {tile / (rows * columns), tile / columns % rows * 4, tile % columns * 4};
}

// Transformed tensors are [36 points][rows][columns], with one cache line of padding between points, which
// would otherwise map to the same cache sets.
constexpr std::int64_t points_stride(std::int64_t rows, std::int64_t columns) {
  return rows * columns + static_cast<std::int64_t>(64 / sizeof(float));
}
constexpr std::int64_t points_floats(std::int64_t rows, std::int64_t columns) {
  return kPoints * points_stride(rows, columns);
}

// Tiles that a thread processes at a time, so that both transformed tensors fit the L2 cache.
template <typename V>
std::int64_t tiles_at_a_time(const Pass<V>& p, std::int64_t cache_bytes) {
  const std::int64_t tile_bytes =
      kPoints * static_cast<std::int64_t>(sizeof(float)) * (p.in_channels() + p.out_channels());
  return std::min(std::max<std::int64_t>(cache_bytes / tile_bytes / 6 * 6, 12), p.tiles());
}
inline std::int64_t chunks_of(std::int64_t tiles, std::int64_t some) { return (tiles + some - 1) / some; }

template <typename V, typename T>
INLINE void input_tile(const Pass<V>& p, const T* x, std::int64_t tile, std::int64_t block, float* points,
                       std::int64_t stride) {
  const auto plane = [&](const Tile& at) {
    return x + (at.image * p.in_blocks + block) * p.in.height * p.in.width * kBlock<V>;
  };
  const Tile at = tile_at(p, tile);
  if (tile + 1 < p.tiles()) {
    const Tile next = tile_at(p, tile + 1);
    p.in.template prefetch<6, V>(plane(next), next.row - p.padding, next.column - p.padding);
  }
  V values[kPoints], transformed[kPoints];
  p.in.template read<6>(plane(at), at.row - p.padding, at.column - p.padding, values);
  transform<InputLine>(values, transformed);
  store_points(transformed, points, stride);
}

// result[row][kBlock * B] = sum over k of left * right[k][kBlock * B].
struct Product {
  std::int64_t depth;
  const float* left;  // [rows][depth] or [depth][rows]
  std::int64_t left_stride;
  const float* right;
  std::int64_t right_stride;
  float* result;
  std::int64_t result_stride;
  bool add;  // add to result
};
enum class Left {
  rows,   // left[row][k]; with `add`, sums start from result
  depth,  // left[k][row]; with `add`, result is added at the end: k counts tiles, of which there are many
};

// Computes Rows rows of a product, from `row` on.
template <Left kLeft, int Rows, int B, typename V>
INLINE void multiply(const Product& a, std::int64_t row) {
  const float* left = a.left + (kLeft == Left::rows ? row * a.left_stride : row);
  float* result = a.result + row * a.result_stride;
  V sums[Rows][B] = {};
  if (kLeft == Left::rows && a.add) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[r][b] = load<V>(result + r * a.result_stride + b * kBlock<V>);
  }
  for (std::int64_t k = 0; k < a.depth; ++k) {
    V right[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) right[b] = load<V>(a.right + k * a.right_stride + b * kBlock<V>);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const float factor = kLeft == Left::rows ? left[r * a.left_stride + k] : left[k * a.left_stride + r];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[r][b] += factor * right[b];
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      float* place = result + r * a.result_stride + b * kBlock<V>;
      store(place, kLeft == Left::depth && a.add ? load<V>(place) + sums[r][b] : sums[r][b]);
    }
}

// AVX-512 and NEON have 32 vector registers, AVX2 has 16.
template <typename V>
constexpr int kRegisters = sizeof(V) == 32 ? 16 : 32;
// Sums that fit in the registers beside their operands.
template <typename V>
constexpr int kSums = kRegisters<V> == 32 ? 24 : 12;
// Out-blocks that one product computes.
template <typename V>
constexpr int kGroup = kRegisters<V> == 32 ? 4 : 2;

// Rows are tiles, sums go over channels.
template <typename V, int B>
void multiply_tiles(const Product& a, std::int64_t tiles) {
  with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
    constexpr int kTiles = B == 1 ? 6 : kSums<V> / B;  // 6 for one block: enough chains
    std::int64_t tile = 0;
    for (; tile + kTiles <= tiles; tile += kTiles) multiply<Left::rows, kTiles, B, V>(a, tile);
    for (; tile + 4 <= tiles; tile += 4) multiply<Left::rows, 4, B, V>(a, tile);
    for (; tile < tiles; ++tile) multiply<Left::rows, 1, B, V>(a, tile);
  });
}

// Rows are channels, in multiples of 4; sums go over tiles.
template <typename V, int B>
void multiply_channels(const Product& a, std::int64_t channels) {
  with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
    for (std::int64_t in = 0; in < channels; in += 4) multiply<Left::depth, 4, B, V>(a, in);
  });
}

// Calls product.template operator()<blocks>(first block) for groups of out-blocks, then for the remaining
// ones one by one.
template <typename V, typename Blocks>
INLINE void in_groups(std::int64_t blocks, Blocks product) {
  std::int64_t block = 0;
  for (; block + kGroup<V> <= blocks; block += kGroup<V>) product.template operator()<kGroup<V>>(block);
  for (; block < blocks; ++block) product.template operator()<1>(block);
}

}  // namespace lockstep::winograd

#undef INLINE
