// SPDX-License-Identifier: Apache-2.0
//
// Bytes per element, in 16-byte accesses where the channels are multiples of 8. Training reads x for the
// statistics, then x and the residual to write y: three elements (12 in fp32, 6 in half types), four with a
// residual (16, 8) and 1/8 for the bit that says where the activation passed. Evaluation: two, or three.
#include <cmath>

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/batch_norm_memory.h"
#include "kernels/cuda/tiling.h"
#include "kernels/functors.h"
#include "kernels/moments.h"

namespace lockstep {
namespace {

struct WarpMoments : Moments {
  __device__ WarpMoments of_lane(unsigned distance) const {
    const int mask = static_cast<int>(distance);
    return {{__shfl_xor_sync(kWholeWarp, count, mask), __shfl_xor_sync(kWholeWarp, mean, mask),
             __shfl_xor_sync(kWholeWarp, squares, mask)}};
  }
};

template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockThreads) moments_kernel(Tiling t, const T* x, WarpMoments* partial) {
  const Part<kLanes> part(t);
  Lanes<kLanes> pivot = {}, sum = {}, squares = {};
  int count = 0;
  if (part.has_channel && part.first_row < part.end_row) {
    pivot = load<kLanes>(x + part.first_row * t.channels + part.channel);
#pragma unroll 4
    for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
      const Lanes<kLanes> values = load<kLanes>(x + row * t.channels + part.channel);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float distance = values[i] - pivot[i];
        sum[i] += distance;
        squares[i] += distance * distance;
      }
      ++count;
    }
  }
  WarpMoments moments[kLanes] = {};
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if (count == 0) continue;
    const double shift = static_cast<double>(sum[i]) / count;
    const double difference = static_cast<double>(squares[i]) - static_cast<double>(sum[i]) * shift;
    moments[i] = {{static_cast<double>(count), static_cast<double>(pivot[i]) + shift,
                   difference < 0 ? 0.0 : difference}};  // NaN, of infinite values, stays
  }
  sum_over_rows(t, moments, [&](int channel, const WarpMoments& total) {
    partial[std::int64_t{blockIdx.y} * t.channels + channel] = total;
  });
}

struct StatisticsOutput {
  float* mean;     // of the batch
  float* inverse;  // 1 / deviation
  BatchNormStatistics running;
  bool update_running;
  float epsilon;
  float momentum;

  __device__ void write(int channel, const Moments& all) const {
    const double variance = all.squares / all.count;
    const auto batch_mean = static_cast<float>(all.mean);
    mean[channel] = batch_mean;
    inverse[channel] = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(epsilon)));
    if (!update_running) return;
    const float keep = 1.0f - momentum;
    const double unbiased = all.count > 1 ? variance * (all.count / (all.count - 1)) : variance;
    running.mean[channel] = keep * running.mean[channel] + momentum * batch_mean;
    running.variance[channel] = keep * running.variance[channel] + momentum * static_cast<float>(unbiased);
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    statistics_kernel(Tiling t, const WarpMoments* partial, StatisticsOutput out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const WarpMoments all = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads == 0) out.write(channel, all);
}

// The same of several ranks: what this one tells, and, when all have told, what all tell.
__global__ void __launch_bounds__(kBlockThreads)
    told_moments_kernel(Tiling t, const WarpMoments* partial, Moments* mine) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const WarpMoments total = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads == 0) mine[channel] = total;
}
__global__ void __launch_bounds__(kBlockThreads)
    statistics_of_ranks_kernel(int channels, int ranks, Moments* told, StatisticsOutput out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel < channels) out.write(channel, sum_along_tree(told + channel, ranks, channels));
}

// For a backward that finds them where a batch's would be.
__global__ void __launch_bounds__(kBlockThreads)
    frozen_statistics_kernel(int channels, BatchNormStatistics running, float epsilon, float* mean,
                             float* inverse) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel >= channels) return;
  mean[channel] = running.mean[channel];
  inverse[channel] = 1.0f / sqrtf(running.variance[channel] + epsilon);
}

// Of the batch, or running.
struct StatisticsInput {
  const float* mean;
  const float* inverse;   // null: from the variance
  const float* variance;  // null with inverse
  float epsilon;
  BatchNormParameters parameters;

  __device__ float slope(int channel) const {
    const float scale = parameters.scale[channel];
    return inverse != nullptr ? scale * inverse[channel] : scale / sqrtf(variance[channel] + epsilon);
  }
};

template <typename T>
struct NormalizeTensors {
  const T* x;
  const T* residual;     // null without
  T* y;                  // may be residual
  std::uint8_t* passed;  // null: not wanted
};

template <int kLanes, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads)
    normalize_kernel(Tiling t, StatisticsInput statistics, Function function, NormalizeTensors<T> tensors) {
  const Part<kLanes> part(t);
  Lanes<kLanes> mean = {}, slope = {}, shift = {};
  if (part.has_channel) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      mean[i] = statistics.mean[part.channel + i];
      slope[i] = statistics.slope(part.channel + i);
      shift[i] = statistics.parameters.shift[part.channel + i];
    }
  }
  for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
    const std::int64_t at = row * t.channels + part.channel;
    unsigned passed = 0;
    if (part.has_channel) {
      Lanes<kLanes> values = load<kLanes>(tensors.x + at);
      Lanes<kLanes> residual = {};
      if (tensors.residual != nullptr) residual = load<kLanes>(tensors.residual + at);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        values[i] = function((values[i] - mean[i]) * slope[i] + shift[i] + residual[i]);
        passed |= function.gradient(values[i], 1.0f) != 0 ? 1u << i : 0u;
      }
      store(tensors.y + at, values);
    }
    if (tensors.passed == nullptr) continue;
    std::uint8_t* bits = tensors.passed + row * passed_row_bytes(t.channels) + part.channel / 8;
    if constexpr (kLanes == kPackedChannels) {
      if (part.has_channel) *bits = static_cast<std::uint8_t>(passed);
    } else {  // a warp has 32 neighbouring channels of one row
      const unsigned votes = __ballot_sync(kWholeWarp, passed != 0);
      if (threadIdx.x == 0) *reinterpret_cast<std::uint32_t*>(bits) = votes;
    }
  }
}

void normalize(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f,
               const StatisticsInput& statistics, std::uint8_t* passed) {
  const void* residual = norm.options.residual ? f.residual : nullptr;
  with_channels(norm, aligned(f.x, residual, f.y), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tiling tiling = Tiling::of(norm, kLanes, enough_blocks(stream.device()));
    const NormalizeTensors<T> tensors{.x = static_cast<const T*>(f.x),
                                      .residual = static_cast<const T*>(residual),
                                      .y = static_cast<T*>(f.y),
                                      .passed = passed};
    with_activation(norm.options.activation, [&](auto function) {
      launch(normalize_kernel<kLanes, T, decltype(function)>, tiling.shape(), stream, tiling, statistics,
             function, tensors);
    });
  });
}

std::uint8_t* passed_of(const CudaBatchNorm& norm, const BatchNormForward& f) {
  if (!norm.keeps_passed()) return nullptr;
  return reinterpret_cast<std::uint8_t*>(BatchNormMemory::row(f.saved, norm.channels, 2));
}

void forward_frozen(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f) {
  float* mean = BatchNormMemory::row(f.saved, norm.channels, 0);
  float* inverse = BatchNormMemory::row(f.saved, norm.channels, 1);
  launch(frozen_statistics_kernel, channel_threads(norm.channels), stream, static_cast<int>(norm.channels),
         f.running, norm.options.epsilon, mean, inverse);
  normalize(stream, norm, f, {.mean = mean, .inverse = inverse, .parameters = f.parameters},
            passed_of(norm, f));
}

}  // namespace

std::size_t CudaBatchNorm::saved_bytes() const {
  const std::size_t passed =
      keeps_passed() ? align_up(static_cast<std::size_t>(rows * passed_row_bytes(channels))) : 0;
  return 2 * BatchNormMemory::row_bytes(channels) + passed;
}

std::size_t CudaBatchNorm::told_bytes() const {
  const auto told = static_cast<std::size_t>(options.ranks > 1 ? options.ranks + 1 : 0);
  return align_up(told * static_cast<std::size_t>(channels) * sizeof(Moments));
}

void* CudaBatchNorm::told(void* scratch) const {
  return static_cast<std::byte*>(scratch) + scratch_bytes() - told_bytes();
}

void* CudaBatchNorm::gather_told(Stream& stream, RankGather& across, void* scratch,
                                 std::size_t channel_bytes) const {
  CHECK(across.ranks() == options.ranks, "batch norm of {} ranks over {}", options.ranks, across.ranks());
  const std::size_t bytes = static_cast<std::size_t>(channels) * channel_bytes;
  std::byte* mine = static_cast<std::byte*>(told(scratch));
  across.gather(stream, mine, mine + bytes, bytes);
  return mine + bytes;
}

std::size_t CudaBatchNorm::scratch_bytes() const {
  if (rows * channels == 0) return 0;
  const unsigned slices = std::max(Tiling::of(*this, kPackedChannels, kReductionBlocks).slices,
                                   Tiling::of(*this, 1, kReductionBlocks).slices);
  return 3 * BatchNormMemory::row_bytes(channels) +
         align_up(slices * static_cast<std::size_t>(channels) * sizeof(Moments)) + told_bytes();
}

void cuda_batch_norm_forward_training(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f) {
  if (norm.rows * norm.channels == 0) return;
  if (norm.options.frozen) return forward_frozen(stream, norm, f);
  auto* partial = static_cast<WarpMoments*>(f.scratch);
  float* mean = BatchNormMemory::row(f.saved, norm.channels, 0);
  float* inverse = BatchNormMemory::row(f.saved, norm.channels, 1);
  with_channels(norm, aligned(f.x), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tiling tiling = Tiling::of(norm, kLanes, kReductionBlocks);
    launch(moments_kernel<kLanes, T>, tiling.shape(), stream, tiling, static_cast<const T*>(f.x), partial);
    const StatisticsOutput out{.mean = mean,
                               .inverse = inverse,
                               .running = f.running,
                               .update_running = f.update_running,
                               .epsilon = norm.options.epsilon,
                               .momentum = norm.options.momentum};
    const LaunchShape warps = channel_warps(norm.channels);
    if (f.across == nullptr)
      return launch(statistics_kernel, warps, stream, tiling, static_cast<const WarpMoments*>(partial), out);
    auto* mine = static_cast<Moments*>(norm.told(f.scratch));
    launch(told_moments_kernel, warps, stream, tiling, static_cast<const WarpMoments*>(partial), mine);
    auto* all = static_cast<Moments*>(norm.gather_told(stream, *f.across, f.scratch, sizeof(Moments)));
    launch(statistics_of_ranks_kernel, channel_threads(norm.channels), stream,
           static_cast<int>(norm.channels), norm.options.ranks, all, out);
  });
  normalize(stream, norm, f, {.mean = mean, .inverse = inverse, .parameters = f.parameters},
            passed_of(norm, f));
}

void cuda_batch_norm_forward_evaluation(Stream& stream, const CudaBatchNorm& norm,
                                        const BatchNormForward& f) {
  if (norm.rows * norm.channels == 0) return;
  normalize(stream, norm, f,
            {.mean = f.running.mean,
             .variance = f.running.variance,
             .epsilon = norm.options.epsilon,
             .parameters = f.parameters},
            nullptr);
}

}  // namespace lockstep
