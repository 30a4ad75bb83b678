// SPDX-License-Identifier: Apache-2.0
//
// Tiling: distributes a [rows, channels] tensor, channels last with one row per pixel, over the threads of
// kernels that have values per channel (batch norm, bias). A block processes a tile of adjacent channels and
// a slice of the rows. A thread keeps its channels throughout, so that their values stay in registers;
// threadIdx.y and the loop go over rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/tensor/dtype.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace lockstep {

// Channels per thread in packed kernels: one byte of passed bits, 16 or 32 bytes of activations. Other
// kernels use one.
inline constexpr int kPackedChannels = 8;
inline constexpr int kMostTileChannels = 64;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;

// Number of blocks of a reduction: four per multiprocessor of a large GPU, and few enough to keep the partial
// sums small. Fixed, unlike that of elementwise passes (enough_blocks): each slice is summed separately, so
// the number of blocks decides the last bits, which must be the same on every device.
inline constexpr std::int64_t kReductionBlocks = 528;
// Blocks that a multiprocessor holds at the same time. With more, a thread would have too few registers and
// spill. With 4, the 528 blocks of a reduction over 16-bit values run in one round.
template <typename T>
inline constexpr int kReductionResident = sizeof(T) == 2 ? 4 : 3;
template <typename T>
inline constexpr int kElementwiseResident = std::is_same_v<T, __half> ? 3 : 2;
// Rows that a thread of an elementwise pass reads at once. See Part::for_rows.
inline constexpr int kElementwiseRows = 2;

struct Tiling {
  std::int64_t rows;
  int channels;
  std::int64_t slice_rows;
  unsigned slices;
  unsigned tiles;
  dim3 block;

  // tensor: any type with rows and channels. lanes: channels per thread. blocks: their number, at most.
  template <typename Rows>
  static Tiling of(const Rows& tensor, int lanes, std::int64_t blocks) {
    constexpr std::int64_t kLeastRows = 4;  // per thread
    const auto threads = static_cast<unsigned>(ceil_div(tensor.channels, lanes));
    const unsigned across =
        lanes == 1 ? kWarpThreads
                   : std::min(std::bit_ceil(threads), unsigned{kMostTileChannels / kPackedChannels});
    const unsigned down = kBlockThreads / across;
    const std::int64_t tiles = ceil_div(threads, across);
    const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(tensor.rows, down * kLeastRows), 1,
                                                         std::max<std::int64_t>(blocks / tiles, 1));
    const std::int64_t slice_rows = ceil_div(tensor.rows, wanted);
    return {.rows = tensor.rows,
            .channels = static_cast<int>(tensor.channels),
            .slice_rows = slice_rows,
            .slices = static_cast<unsigned>(ceil_div(tensor.rows, slice_rows)),
            .tiles = static_cast<unsigned>(tiles),
            .block = dim3(across, down)};
  }
  LaunchShape shape() const { return {.grid = dim3(tiles, slices), .block = block}; }
};

// The channels and rows that a thread processes.
template <int kLanes>
struct Part {
  int channel;
  bool has_channel;
  std::int64_t first_row;
  std::int64_t end_row;
  unsigned row_step;

  __device__ explicit Part(const Tiling& t)
      : channel(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kLanes),
        has_channel(channel < t.channels),
        first_row(blockIdx.y * t.slice_rows + threadIdx.y),
        end_row(blockIdx.y * t.slice_rows + t.slice_rows),
        row_step(blockDim.y) {
    if (end_row > t.rows) end_row = t.rows;
  }

  // The number of rows that for_rows visits.
  __device__ std::int64_t rows() const { return (end_row - first_row + row_step - 1) / row_step; }

  // Calls use(row, read(row)) for each row, in order. Reads kAtOnce rows before it uses the first of them: a
  // multiprocessor needs about 32 KiB in flight to keep the memory busy.
  template <int kAtOnce, typename Row, typename Read, typename Use>
  __device__ void for_rows(Read read, Use use) const {
    std::int64_t row = first_row;
    for (; row + (kAtOnce - 1) * row_step < end_row; row += kAtOnce * row_step) {
      Row values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) values[i] = read(row + i * row_step);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) use(row + i * row_step, values[i]);
    }
    for (; row < end_row; row += row_step) use(row, read(row));
  }
};

// Sums the values of a block's threads for each channel, in a fixed order: within warps, then over warps.
// Calls total(channel, sum) once per channel of the tile. Value has device functions add(Value) and
// of_lane(distance). All threads of the block must call it.
template <int kLanes, typename Value, typename Total>
__device__ inline void sum_over_rows(const Tiling& t, Value (&values)[kLanes], Total total) {
  alignas(16) __shared__ unsigned char storage[kBlockWarps * kMostTileChannels * sizeof(Value)];
  auto* shared = reinterpret_cast<Value*>(storage);
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int tile_channels = static_cast<int>(blockDim.x) * kLanes;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    for (unsigned distance = blockDim.x; distance < kWarpThreads; distance *= 2) {
      values[i].add(values[i].of_lane(distance));
    }
  }
  if (thread % kWarpThreads == threadIdx.x) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      shared[static_cast<int>(thread / kWarpThreads) * tile_channels +
             static_cast<int>(threadIdx.x) * kLanes + i] = values[i];
    }
  }
  __syncthreads();
  if (static_cast<int>(thread) >= tile_channels) return;
  Value sum = shared[thread];
  for (int warp = 1; warp < kBlockWarps; ++warp)
    sum.add(shared[warp * tile_channels + static_cast<int>(thread)]);
  const int channel = static_cast<int>(blockIdx.x) * tile_channels + static_cast<int>(thread);
  if (channel < t.channels) total(channel, sum);
}

// Sums the slices' values, [slices, channels], of one channel with one warp. The result is in lane 0.
template <typename Value>
__device__ inline Value sum_over_slices(const Value* partial, const Tiling& t, int channel) {
  Value sum = {};
  for (unsigned slice = threadIdx.x % kWarpThreads; slice < t.slices; slice += kWarpThreads) {
    sum.add(partial[std::int64_t{slice} * t.channels + channel]);
  }
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2) sum.add(sum.of_lane(distance));
  return sum;
}

// One warp per channel.
inline LaunchShape channel_warps(std::int64_t channels) {
  return {.grid = dim3(static_cast<unsigned>(ceil_div(channels, kBlockWarps))), .block = dim3(kBlockThreads)};
}

// One thread per channel.
inline LaunchShape channel_threads(std::int64_t channels) {
  return {.grid = dim3(static_cast<unsigned>(ceil_div(channels, kBlockThreads))),
          .block = dim3(kBlockThreads)};
}

// Calls function(std::type_identity<T>, std::integral_constant<int, channels per thread>).
template <typename Rows, typename F>
void with_channels(const Rows& tensor, bool aligned_memory, F function) {
  with_element(tensor.type, [&](auto element) {
    if (aligned_memory && tensor.channels % kPackedChannels == 0) {
      function(element, std::integral_constant<int, kPackedChannels>());
    } else {
      function(element, std::integral_constant<int, 1>());
    }
  });
}

}  // namespace lockstep
