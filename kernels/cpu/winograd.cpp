// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/winograd.h"

#include <algorithm>

#include <omp.h>

#include "core/error.h"
#include "core/system/processors.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/winograd_tiles.h"
#include "kernels/functors.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

using namespace winograd;

constexpr std::int64_t kCacheOfTiles = 400 << 10;

// From this many weights on, processing the weights block by block is faster.
constexpr std::int64_t kManyWeights = 512 * 256;
// The out-blocks and in-blocks of the weights at a time.
constexpr std::int64_t kOutBlocks = 2;
template <typename V>
constexpr std::int64_t kInBlocks = 64 / kBlock<V>;

template <typename V>
bool by_weights(const Pass<V>& p) {
  return p.in_channels() * p.out_channels() >= kManyWeights && p.in_blocks % kInBlocks<V> == 0 &&
         p.out_blocks % kOutBlocks == 0;
}

template <typename V, typename T, typename Finish>
INLINE void output_tile(const Pass<V>& p, const float* points, std::int64_t stride, T* y, std::int64_t tile,
                        std::int64_t block, Finish finish) {
  const Tile at = tile_at(p, tile);
  V values[kPoints], outputs[16];
  load_points(points, stride, values);
  transform<OutputLine>(values, outputs);
  T* plane = y + (at.image * p.out_blocks + block) * p.out.height * p.out.width * kBlock<V>;
  p.out.template prefetch<4, V>(plane, at.row, at.column + 4);
  for (std::int64_t r = 0; r < 4 && at.row + r < p.out.height; ++r) {
    for (std::int64_t c = 0; c < 4 && at.column + c < p.out.width; ++c) {
      store(plane + ((at.row + r) * p.out.width + at.column + c) * kBlock<V>,
            finish(outputs[r * 4 + c], block));
    }
  }
}

// Transforms a block of weights, to points[k * width] for in-channel k of the pass.
template <typename V, typename T>
INLINE void weight_points(const T* block, float* points, std::int64_t width, std::int64_t stride) {
  for (int k = 0; k < kBlock<V>; ++k) {
    V taps[9], transformed[kPoints];
#pragma GCC unroll 9
    for (int tap = 0; tap < 9; ++tap) taps[tap] = load<V>(block + (tap * kBlock<V> + k) * kBlock<V>);
    transform<WeightLine>(taps, transformed);
    store_points(transformed, points + k * width, stride);
  }
}

// Rotates the taps by 180 degrees and transposes the channels.
template <typename V, typename T>
INLINE void turn(const T* block, float* turned) {
  constexpr int kSide = kBlock<V>;
  for (int tap = 0; tap < 9; ++tap) {
    float rows[kSide * kSide];
    for (int i = 0; i < kSide; ++i) store(rows + i * kSide, load<V>(block + (tap * kSide + i) * kSide));
    for (int i = 0; i < kSide; ++i)
      for (int o = 0; o < kSide; ++o) turned[((8 - tap) * kSide + o) * kSide + i] = rows[i * kSide + o];
  }
}

template <typename V, typename T>
INLINE void weight_block(const Pass<V>& p, const T* weights, std::int64_t in_block, std::int64_t out_block,
                         float* points, std::int64_t width, std::int64_t stride) {
  constexpr std::int64_t kFloats = 9 * kBlock<V> * kBlock<V>;
  const std::int64_t place =
      p.backward ? in_block * p.out_blocks + out_block : out_block * p.in_blocks + in_block;
  const T* block = weights + place * kFloats;
  if (!p.backward) return weight_points<V>(block, points, width, stride);
  float turned[kFloats];
  turn<V>(block, turned);
  weight_points<V>(turned, points, width, stride);
}

// Transformed weights in the order in which in_groups reads them, one array per group of out-blocks:
// [in][kBlock * blocks].
struct WeightPlace {
  std::int64_t offset, width;
};
template <typename V>
WeightPlace weight_place(const Pass<V>& p, std::int64_t in_block, std::int64_t out_block) {
  const bool grouped = out_block < p.out_blocks / kGroup<V> * kGroup<V>;
  const std::int64_t first = grouped ? out_block / kGroup<V> * kGroup<V> : out_block;
  const std::int64_t width = (grouped ? kGroup<V> : 1) * kBlock<V>;
  return {(first * p.in_channels() + in_block * width + out_block - first) * kBlock<V>, width};
}

template <typename V, typename T, typename Finish>
void convolve_by_tiles(const Pass<V>& p, const T* x, const T* weights, T* y, float* scratch, int threads,
                       Finish finish) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfTiles);
  const std::int64_t u_stride = points_stride(in, out), v_stride = points_stride(some, in),
                     m_stride = points_stride(some, out);
  float* const u = scratch;
  deal(p.out_blocks * p.in_blocks, threads, [&](std::int64_t block) {
    const std::int64_t o = block / p.in_blocks, i = block % p.in_blocks;
    const WeightPlace place = weight_place(p, i, o);
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      weight_block(p, weights, i, o, u + place.offset, place.width, u_stride);
    });
  });
  deal(chunks_of(tiles, some), threads, [&](std::int64_t chunk) {
    float* const v = u + kPoints * u_stride + omp_get_thread_num() * kPoints * (v_stride + m_stride);
    float* const m = v + kPoints * v_stride;
    const std::int64_t first = chunk * some, count = std::min(some, tiles - first);
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t i = 0; i < p.in_blocks; ++i)
          input_tile(p, x, first + t, i, v + t * in + i * kBlock<V>, v_stride);
    });
    for (std::int64_t point = 0; point < kPoints; ++point) {
      in_groups<V>(p.out_blocks, [&]<int B>(std::int64_t o) {
        multiply_tiles<V, B>({in, v + point * v_stride, in, u + point * u_stride + o * kBlock<V> * in,
                              B * kBlock<V>, m + point * m_stride + o * kBlock<V>, out, false},
                             count);
      });
    }
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t o = 0; o < p.out_blocks; ++o)
          output_tile(p, m + t * out + o * kBlock<V>, m_stride, y, first + t, o, finish);
    });
  });
}

template <typename V, typename T, typename Finish>
void convolve_by_weights(const Pass<V>& p, const T* x, const T* weights, T* y, float* scratch, int threads,
                         Finish finish) {
  const std::int64_t in = p.in_channels(), tiles = p.tiles();
  constexpr std::int64_t kOut = kOutBlocks * kBlock<V>, kDepth = kInBlocks<V> * kBlock<V>;
  constexpr std::int64_t kUStride = points_stride(kDepth, kOut);
  const std::int64_t v_stride = points_stride(tiles, in), m_stride = points_stride(tiles, kOut);
  float* const v = scratch;
  deal(tiles, threads, [&](std::int64_t t) {
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t i = 0; i < p.in_blocks; ++i)
        input_tile(p, x, t, i, v + t * in + i * kBlock<V>, v_stride);
    });
  });
  deal(p.out_blocks / kOutBlocks, threads, [&](std::int64_t some) {
    float* const u = v + kPoints * v_stride + omp_get_thread_num() * kPoints * (kUStride + m_stride);
    float* const m = u + kPoints * kUStride;
    const std::int64_t o = some * kOutBlocks;
    for (std::int64_t i = 0; i < p.in_blocks; i += kInBlocks<V>) {
      with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
        for (std::int64_t k = 0; k < kInBlocks<V>; ++k)
          for (std::int64_t j = 0; j < kOutBlocks; ++j)
            weight_block(p, weights, i + k, o + j, u + (k * kOut + j) * kBlock<V>, kOut, kUStride);
      });
      for (std::int64_t point = 0; point < kPoints; ++point)
        multiply_tiles<V, kOutBlocks>({kDepth, v + point * v_stride + i * kBlock<V>, in, u + point * kUStride,
                                       kOut, m + point * m_stride, kOut, i > 0},
                                      tiles);
    }
    with_registers_of<V>([=]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t t = 0; t < tiles; ++t)
        for (std::int64_t j = 0; j < kOutBlocks; ++j)
          output_tile(p, m + t * kOut + j * kBlock<V>, m_stride, y, t, o + j, finish);
    });
  });
}

template <typename V, typename T, typename Activate>
void convolve(const Pass<V>& p, const T* x, const T* weights, const float* bias, T* y, void* scratch,
              int threads, Activate activate) {
  auto* memory = static_cast<float*>(scratch);
  const auto finish = [=](const V& value, std::int64_t block) LOCKSTEP_PROCESSOR_BODY {
    return activate(bias == nullptr ? value : value + load<V>(bias + block * kBlock<V>));
  };
  by_weights(p) ? convolve_by_weights(p, x, weights, y, memory, threads, finish)
                : convolve_by_tiles(p, x, weights, y, memory, threads, finish);
}

template <typename V>
std::size_t convolve_scratch(const Pass<V>& p, int threads) {
  const std::int64_t in = p.in_channels(), out = p.out_channels(), tiles = p.tiles();
  const std::int64_t some = tiles_at_a_time(p, kCacheOfTiles);
  constexpr std::int64_t kDepth = kInBlocks<V> * kBlock<V>, kOut = kOutBlocks * kBlock<V>;
  const std::int64_t floats =
      by_weights(p)
          ? points_floats(tiles, in) + threads * (points_floats(kDepth, kOut) + points_floats(tiles, kOut))
          : points_floats(in, out) + threads * (points_floats(some, in) + points_floats(some, out));
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

std::int64_t WinogradConvolution::channel_block(const ConvolutionShape& s) {
  if (s.kernel != 3 || s.stride != 1 || s.dilation != 1 || s.groups != 1 || s.padding > 2) return 0;
  const auto divides = [&](std::int64_t block) {
    return s.in_channels % block == 0 && s.out_channels % block == 0;
  };
#if defined(__aarch64__)
  return divides(4) ? 4 : 0;
#else
  if (instruction_set() == InstructionSet::avx512 && divides(16)) return 16;
  return instruction_set() != InstructionSet::baseline && divides(8) ? 8 : 0;
#endif
}

WinogradConvolution::WinogradConvolution(const ConvolutionShape& shape, DType type)
    : shape_(shape), type_(type), block_(channel_block(shape)), planned_threads_(omp_get_max_threads()) {
  CHECK(type == DType::f32 || type == DType::bf16, "Winograd does not read {}", name_of(type));
  CHECK(block_ != 0, "Winograd does not support this shape or processor");
}

int WinogradConvolution::threads() const { return std::min(planned_threads_, omp_get_max_threads()); }

std::size_t WinogradConvolution::forward_scratch_bytes() const {
  return with_block(
      block_, [&]<typename V>() { return convolve_scratch(forward_pass<V>(shape_), planned_threads_); });
}
std::size_t WinogradConvolution::backward_data_scratch_bytes() const {
  return with_block(
      block_, [&]<typename V>() { return convolve_scratch(backward_pass<V>(shape_), planned_threads_); });
}

void WinogradConvolution::forward(const AffineOperands& o) const {
  with_block(block_, [&]<typename V>() {
    with_storage(type_, [&]<typename T>() {
      auto* y = static_cast<T*>(const_cast<void*>(o.y));
      with_activation(shape_.activation, [&](auto activate) {
        convolve(forward_pass<V>(shape_), static_cast<const T*>(o.x), static_cast<const T*>(o.w), o.bias, y,
                 o.scratch, threads(), activate);
      });
    });
  });
}

void WinogradConvolution::backward_data(const AffineOperands& o) const {
  with_block(block_, [&]<typename V>() {
    with_storage(type_, [&]<typename T>() {
      auto* x = static_cast<T*>(const_cast<void*>(o.x));
      convolve(backward_pass<V>(shape_), static_cast<const T*>(o.y), static_cast<const T*>(o.w), nullptr, x,
               o.scratch, threads(), Identity());
    });
  });
}

}  // namespace lockstep
