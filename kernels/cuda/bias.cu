// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element, in 16-byte accesses if the number of channels is a multiple of 8: bias
// and activation read and write one element (8 bytes in fp32, 4 in half types), the gradient reads one (4,
// 2).
#include <algorithm>

#include "kernels/cuda/bias.h"
#include "kernels/cuda/tiling.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

template <int kLanes, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads)
    bias_activation_kernel(Tiling t, Function function, const float* bias, T* y) {
  const Part<kLanes> part(t);
  if (!part.has_channel) return;
  Lanes<kLanes> shift;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) shift[i] = bias[part.channel + i];
#pragma unroll 4
  for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
    T* place = y + row * t.channels + part.channel;
    Lanes<kLanes> values = load<kLanes>(place);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) values[i] = function(values[i] + shift[i]);
    store(place, values);
  }
}

struct ChannelSum {
  double sum;

  __device__ void add(const ChannelSum& other) { sum += other.sum; }
  __device__ ChannelSum of_lane(unsigned distance) const {
    return {__shfl_xor_sync(kWholeWarp, sum, static_cast<int>(distance))};
  }
};

template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    channel_sums_kernel(Tiling t, const T* y_gradient, ChannelSum* partial) {
  const Part<kLanes> part(t);
  Lanes<kLanes> sum = {};
  if (part.has_channel) {
#pragma unroll 4
    for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
      const Lanes<kLanes> values = load<kLanes>(y_gradient + row * t.channels + part.channel);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum[i] += values[i];
    }
  }
  ChannelSum sums[kLanes] = {};
#pragma unroll
  for (int i = 0; i < kLanes; ++i) sums[i] = {static_cast<double>(sum[i])};
  sum_over_rows(t, sums, [&](int channel, const ChannelSum& total) {
    partial[std::int64_t{blockIdx.y} * t.channels + channel] = total;
  });
}

__global__ void __launch_bounds__(kBlockThreads)
    bias_gradient_kernel(Tiling t, const ChannelSum* partial, float* gradient, Write write) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const ChannelSum all = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads != 0) return;
  const float before = write == Write::accumulate ? gradient[channel] : 0.0f;
  gradient[channel] = before + static_cast<float>(all.sum);
}

}  // namespace

void cuda_bias_activation(Stream& stream, const CudaRows& rows, const BiasActivation& a) {
  if (rows.elements() == 0) return;
  with_channels(rows, aligned(a.y), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tiling tiling = Tiling::of(rows, kLanes, enough_blocks(stream.device()));
    with_activation(a.activation, [&](auto function) {
      launch(bias_activation_kernel<kLanes, T, decltype(function)>, tiling.shape(), stream, tiling, function,
             a.bias, static_cast<T*>(a.y));
    });
  });
}

std::size_t cuda_bias_gradient_scratch_bytes(const CudaRows& rows) {
  if (rows.elements() == 0) return 0;
  const unsigned slices = std::max(Tiling::of(rows, kPackedChannels, kReductionBlocks).slices,
                                   Tiling::of(rows, 1, kReductionBlocks).slices);
  return slices * static_cast<std::size_t>(rows.channels) * sizeof(ChannelSum);
}

void cuda_bias_gradient(Stream& stream, const CudaRows& rows, const BiasGradient& b) {
  if (rows.elements() == 0) return;
  auto* partial = static_cast<ChannelSum*>(b.scratch);
  with_channels(rows, aligned(b.y_gradient), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tiling tiling = Tiling::of(rows, kLanes, kReductionBlocks);
    launch(channel_sums_kernel<kLanes, T>, tiling.shape(), stream, tiling,
           static_cast<const T*>(b.y_gradient), partial);
    launch(bias_gradient_kernel, channel_warps(rows.channels), stream, tiling,
           static_cast<const ChannelSum*>(partial), b.gradient, b.write);
  });
}

}  // namespace lockstep
