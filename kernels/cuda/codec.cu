// SPDX-License-Identifier: Apache-2.0
//
// One warp encodes or decodes a block of 256 elements: lane l holds the elements l, 32 + l, .. in registers,
// so that the lanes of an access touch adjacent memory. Bytes of memory traffic per element, besides the
// records and the bits of padding: encoding with a residual reads 8 and writes 4, without one reads 4;
// summing the records of p ranks reads p records and writes 4; keeping reads 4 and writes 4.
#include "kernels/codec_functors.h"
#include "kernels/cuda/codec.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace lockstep {
namespace {

static_assert(kBlockLanes == kWarpThreads);
constexpr int kWarps = kBlockThreads / kWarpThreads;
constexpr int kKeptLanes = 4;

__device__ inline std::uint32_t warp_largest(std::uint32_t value) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kWholeWarp, value, distance);
    value = value > other ? value : other;
  }
  return value;
}

// The index of this warp's block; -1 if there is none, in all lanes.
__device__ inline std::int64_t my_block(std::int64_t blocks) {
  const std::int64_t block = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpThreads;
  return block < blocks ? block : -1;
}

__device__ inline int my_lane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }

struct Fed {
  float values[kBlockRows];
};

__device__ inline Fed feed(const BlockEncode& a, std::int64_t first, const ErrorFeedback& feedback) {
  Fed fed;
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    const std::int64_t i = first + row * kBlockLanes;
    fed.values[row] = a.residual == nullptr ? a.values[i] : feedback.fed(a.values[i], a.residual[i]);
  }
  return fed;
}

__global__ void __launch_bounds__(kBlockThreads) encode_int8_kernel(BlockEncode a) {
  const std::int64_t block = my_block(a.blocks);
  if (block < 0) return;
  const int lane = my_lane();
  const std::int64_t first = block * kBlockElements + lane;
  const ErrorFeedback feedback = ErrorFeedback::of(a.loss_scale);
  const Fed fed = feed(a, first, feedback);
  std::uint32_t largest = 0;
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(fed.values[row]) & kMagnitudeBits;
    largest = largest > bits ? largest : bits;
  }
  const Int8Block int8 = Int8Block::of(warp_largest(largest));
  std::byte* record = a.records + block * record_bytes(BlockCode::int8);
  if (lane == 0) *reinterpret_cast<float*>(record) = int8.scale;
  auto* bytes = reinterpret_cast<std::uint8_t*>(record + sizeof(float)) + lane;
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    const std::int64_t i = first + row * kBlockLanes;
    std::uint32_t byte;
    if (a.step == nullptr) {
      byte = int8.rounded(fed.values[row]);
    } else {
      const PhiloxCounter words = dither_words(i, *a.step, a.purpose, a.key);
      byte = int8.rounded(fed.values[row], words[static_cast<std::size_t>(i % 4)]);
    }
    bytes[row * kBlockLanes] = static_cast<std::uint8_t>(byte);
    if (a.left == nullptr) continue;
    const float sent = Int8Block::decoded(int8.scale, static_cast<std::int8_t>(byte));
    a.left[i] = feedback.left(fed.values[row], sent);
  }
}

// True if this lane's element of the row is not padding (BlockEncode::real).
__device__ inline bool is_real(const std::uint32_t* real, std::int64_t block, int row, int lane) {
  return real == nullptr || ((real[block * kBlockRows + row] >> lane) & 1u) != 0;
}

// The butterflies of SignRotation: first between rows, which are in one lane, then between lanes.
__device__ inline void hadamard(Fed& block, int lane) {
#pragma unroll
  for (int distance = kBlockRows / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) {
      if ((row & distance) != 0) continue;
      const float first = block.values[row], second = block.values[row + distance];
      block.values[row] = first + second;
      block.values[row + distance] = first - second;
    }
  }
#pragma unroll
  for (int distance = kBlockLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) {
      const float mine = block.values[row], other = __shfl_xor_sync(kWholeWarp, mine, distance);
      block.values[row] = (lane & distance) != 0 ? other - mine : mine + other;
    }
  }
}

__device__ inline void rotate(Fed& block, int lane) {
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) block.values[row] *= SignRotation::factor(row, lane);
  hadamard(block, lane);
}

__device__ inline void rotate_back(Fed& block, int lane) {
  hadamard(block, lane);
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) block.values[row] *= SignRotation::factor(row, lane);
}

__global__ void __launch_bounds__(kBlockThreads) encode_sign_kernel(BlockEncode a) {
  const std::int64_t block = my_block(a.blocks);
  if (block < 0) return;
  const int lane = my_lane();
  const std::int64_t first = block * kBlockElements + lane;
  const ErrorFeedback feedback = ErrorFeedback::of(a.loss_scale);
  Fed fed = feed(a, first, feedback);
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    if (!is_real(a.real, block, row, lane)) fed.values[row] = 0;
  }
  rotate(fed, lane);
  float sum = 0;
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row)
    sum = row == 0 ? fabsf(fed.values[row]) : sum + fabsf(fed.values[row]);
  const float scale = SignBlock::scale_of(warp_sum(sum));
  std::byte* record = a.records + block * record_bytes(BlockCode::sign);
  if (lane == 0) *reinterpret_cast<float*>(record) = scale;
  auto* words = reinterpret_cast<std::uint32_t*>(record + sizeof(float));
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    const bool negative = SignBlock::bit(fed.values[row]);
    const std::uint32_t word = __ballot_sync(kWholeWarp, negative ? 1 : 0);
    if (lane == row) words[row] = word;
    fed.values[row] = feedback.left(fed.values[row], SignBlock::decoded(scale, negative));
  }
  if (a.left == nullptr) return;
  rotate_back(fed, lane);
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    a.left[first + row * kBlockLanes] = is_real(a.real, block, row, lane) ? fed.values[row] : 0.0f;
  }
}

__global__ void __launch_bounds__(kBlockThreads) sum_int8_kernel(BlockSum a) {
  const std::int64_t block = my_block(a.blocks);
  if (block < 0) return;
  const int lane = my_lane();
  Fed sum = {};
  for (std::int64_t part = 0; part < a.parts; ++part) {
    const std::byte* record = a.records + (part * a.blocks + block) * record_bytes(BlockCode::int8);
    const float scale = *reinterpret_cast<const float*>(record);
    const auto* bytes = reinterpret_cast<const std::int8_t*>(record + sizeof(float)) + lane;
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) {
      const float value = Int8Block::decoded(scale, bytes[row * kBlockLanes]);
      sum.values[row] = part == 0 ? value : sum.values[row] + value;
    }
  }
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    a.values[block * kBlockElements + row * kBlockLanes + lane] =
        is_real(a.real, block, row, lane) ? sum.values[row] : 0.0f;
  }
}

__global__ void __launch_bounds__(kBlockThreads) sum_sign_kernel(BlockSum a) {
  const std::int64_t block = my_block(a.blocks);
  if (block < 0) return;
  const int lane = my_lane();
  Fed sum = {};
  // The signs of a single record are summed as integers, exactly, and multiplied by the scale afterwards.
  const bool alone = a.parts == 1;
  float scale = 1;
  for (std::int64_t part = 0; part < a.parts; ++part) {
    const std::byte* record = a.records + (part * a.blocks + block) * record_bytes(BlockCode::sign);
    scale = *reinterpret_cast<const float*>(record);
    const auto* words = reinterpret_cast<const std::uint32_t*>(record + sizeof(float));
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) {
      const float value = SignBlock::decoded(alone ? 1.0f : scale, ((words[row] >> lane) & 1u) != 0);
      sum.values[row] = part == 0 ? value : sum.values[row] + value;
    }
  }
  rotate_back(sum, lane);
#pragma unroll
  for (int row = 0; row < kBlockRows; ++row) {
    const float value = alone ? sum.values[row] * scale : sum.values[row];
    a.values[block * kBlockElements + row * kBlockLanes + lane] =
        is_real(a.real, block, row, lane) ? value : 0.0f;
  }
}

__global__ void __launch_bounds__(kMostBlockThreads) keep_kernel(Keep a) {
  if (a.finite != nullptr && *a.finite == 0) return;
  const std::int64_t first = kKeptLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first == 0 && a.steps != nullptr) a.steps->increase();
  if (first + kKeptLanes <= a.count && aligned(a.from, a.to)) {
    store(a.to + first, load<kKeptLanes>(a.from + first));
    return;
  }
  for (std::int64_t i = first; i < first + kKeptLanes && i < a.count; ++i) a.to[i] = a.from[i];
}

LaunchShape warp_for_each(std::int64_t blocks) {
  return {.grid = dim3(static_cast<unsigned>(ceil_div(blocks, kWarps))), .block = dim3(kBlockThreads)};
}

}  // namespace

void cuda_encode_blocks(Stream& stream, const BlockEncode& a) {
  if (a.blocks == 0) return;
  launch(a.code == BlockCode::int8 ? encode_int8_kernel : encode_sign_kernel, warp_for_each(a.blocks), stream,
         a);
}

void cuda_sum_blocks(Stream& stream, const BlockSum& a) {
  if (a.blocks == 0) return;
  launch(a.code == BlockCode::int8 ? sum_int8_kernel : sum_sign_kernel, warp_for_each(a.blocks), stream, a);
}

void cuda_keep_if_finite(Stream& stream, const Keep& a) {
  if (a.count == 0 && a.steps == nullptr) return;
  const int threads = block_threads();
  const std::int64_t blocks = ceil_div(a.count, std::int64_t{threads} * kKeptLanes);
  launch(keep_kernel,
         {.grid = dim3(static_cast<unsigned>(blocks > 0 ? blocks : 1)),
          .block = dim3(static_cast<unsigned>(threads))},
         stream, a);
}

}  // namespace lockstep
