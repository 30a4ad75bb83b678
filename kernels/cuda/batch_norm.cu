// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element, in 16-byte accesses if the number of channels is a multiple of 8.
// Training reads x for the statistics, then reads x and the residual and writes y: three elements (12 bytes
// in fp32, 6 in half types), with a residual four (16, 8) plus 1/8 for the bit that says whether the
// activation passed its input. Evaluation: two elements, with a residual three.
#include <cmath>

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/batch_norm_memory.h"
#include "kernels/cuda/tiling.h"
#include "kernels/functors.h"
#include "kernels/moments.h"

namespace lockstep {
namespace {

// Sums of x - pivot and of its square. The pivot is the channel's first value. It is at most sqrt(n) standard
// deviations from the mean of n values, so cancellation in fp64 costs the moments a relative error of at most
// n 2^-53.
struct PivotSums {
  double sum;
  double squares;

  __device__ void add(const PivotSums& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ PivotSums of_lane(unsigned distance) const {
    const int mask = static_cast<int>(distance);
    return {__shfl_xor_sync(kWholeWarp, sum, mask), __shfl_xor_sync(kWholeWarp, squares, mask)};
  }
  __device__ Moments moments(double count, double pivot) const {
    const double difference = squares - sum * (sum / count);
    return {count, pivot + sum / count, difference < 0 ? 0.0 : difference};  // NaN stays NaN
  }
};

// Partial sums of a slice, [slices, channels]. Each thread sums distances from the first value of its rows
// in fp32; the sums are moved to the channel's pivot in fp64.
template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockThreads, kReductionResident<T>)
    moments_kernel(Tiling t, const T* x, PivotSums* partial) {
  const Part<kLanes> part(t);
  Lanes<kLanes> pivot = {}, sum = {}, squares = {};
  PivotSums sums[kLanes] = {};
  if (part.has_channel && part.first_row < part.end_row) {
    pivot = load<kLanes>(x + part.first_row * t.channels + part.channel);
    part.template for_rows<4, Pack<T, kLanes>>(
        [&](std::int64_t row) { return load_pack<kLanes>(x + row * t.channels + part.channel); },
        [&](std::int64_t, const Pack<T, kLanes>& pack) {
          const Lanes<kLanes> values = to_lanes(pack);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) {
            const float distance = values[i] - pivot[i];
            sum[i] += distance;
            squares[i] += distance * distance;
          }
        });
    const auto count = static_cast<double>(part.rows());
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const double apart = static_cast<double>(pivot[i]) - static_cast<double>(to_float(x[part.channel + i]));
      const auto mine = static_cast<double>(sum[i]);
      sums[i] = {mine + count * apart, static_cast<double>(squares[i]) + apart * (2 * mine + count * apart)};
    }
  }
  sum_over_rows(t, sums, [&](int channel, const PivotSums& total) {
    partial[std::int64_t{blockIdx.y} * t.channels + channel] = total;
  });
}

struct StatisticsOutput {
  float* mean;     // of the batch, over all ranks
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

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    statistics_kernel(Tiling t, const T* x, const PivotSums* partial, StatisticsOutput out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const PivotSums all = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads != 0) return;
  out.write(channel, all.moments(static_cast<double>(t.rows), static_cast<double>(to_float(x[channel]))));
}

// For several ranks: this kernel writes the rank's own moments, [channels]. After the gather,
// statistics_of_ranks_kernel combines those of all ranks, [ranks, channels].
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    told_moments_kernel(Tiling t, const T* x, const PivotSums* partial, Moments* mine) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const PivotSums all = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads != 0) return;
  mine[channel] = all.moments(static_cast<double>(t.rows), static_cast<double>(to_float(x[channel])));
}
__global__ void __launch_bounds__(kBlockThreads)
    statistics_of_ranks_kernel(int channels, int ranks, Moments* told, StatisticsOutput out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel < channels) out.write(channel, sum_along_tree(told + channel, ranks, channels));
}

// For frozen batch norm: writes the running statistics to the place where backward reads the batch's.
__global__ void __launch_bounds__(kBlockThreads)
    frozen_statistics_kernel(int channels, BatchNormStatistics running, float epsilon, float* mean,
                             float* inverse) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel >= channels) return;
  mean[channel] = running.mean[channel];
  inverse[channel] = 1.0f / sqrtf(running.variance[channel] + epsilon);
}

// The statistics of the batch, or the running ones.
struct StatisticsInput {
  const float* mean;
  const float* inverse;   // null: computed from the variance
  const float* variance;  // null if inverse is set
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
  const T* residual;     // null without a residual
  T* y;                  // may be residual
  std::uint8_t* passed;  // null: not wanted
};

template <int kLanes, bool kResidual, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads, kElementwiseResident<T>)
    normalize_kernel(Tiling t, StatisticsInput statistics, Function function, NormalizeTensors<T> tensors) {
  struct Row {
    Pack<T, kLanes> x, residual;
  };
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
  const auto read = [&](std::int64_t row) {
    const std::int64_t at = row * t.channels + part.channel;
    Row values = {};
    if (part.has_channel) values.x = load_pack<kLanes>(tensors.x + at);
    if (kResidual && part.has_channel) values.residual = load_pack<kLanes>(tensors.residual + at);
    return values;
  };
  const auto write = [&](std::int64_t row, const Row& given) {
    unsigned passed = 0;
    if (part.has_channel) {
      Lanes<kLanes> values = to_lanes(given.x);
      const Lanes<kLanes> residual = to_lanes(given.residual);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        values[i] = (values[i] - mean[i]) * slope[i] + shift[i];
        values[i] = function(kResidual ? values[i] + residual[i] : values[i]);
        passed |= function.gradient(values[i], 1.0f) != 0 ? 1u << i : 0u;
      }
      store(tensors.y + row * t.channels + part.channel, values);
    }
    if (tensors.passed == nullptr) return;
    std::uint8_t* bits = tensors.passed + row * passed_row_bytes(t.channels) + part.channel / 8;
    if constexpr (kLanes == kPackedChannels) {
      if (part.has_channel) *bits = static_cast<std::uint8_t>(passed);
    } else {  // a warp has 32 adjacent channels of one row
      const unsigned votes = __ballot_sync(kWholeWarp, passed != 0);
      if (threadIdx.x == 0) *reinterpret_cast<std::uint32_t*>(bits) = votes;
    }
  };
  part.template for_rows<kElementwiseRows, Row>(read, write);
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
      using Function = decltype(function);
      const auto kernel = residual != nullptr ? normalize_kernel<kLanes, true, T, Function>
                                              : normalize_kernel<kLanes, false, T, Function>;
      launch(kernel, tiling.shape(), stream, tiling, statistics, function, tensors);
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
  CHECK(across.ranks() == options.ranks, "batch norm is planned for {} ranks, the gather has {}",
        options.ranks, across.ranks());
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
  auto* partial = static_cast<PivotSums*>(f.scratch);
  float* mean = BatchNormMemory::row(f.saved, norm.channels, 0);
  float* inverse = BatchNormMemory::row(f.saved, norm.channels, 1);
  with_channels(norm, aligned(f.x), [&](auto element, auto lanes) {
    using T = typename decltype(element)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tiling tiling = Tiling::of(norm, kLanes, kReductionBlocks);
    const auto* x = static_cast<const T*>(f.x);
    const PivotSums* sums = partial;
    launch(moments_kernel<kLanes, T>, tiling.shape(), stream, tiling, x, partial);
    const StatisticsOutput out{.mean = mean,
                               .inverse = inverse,
                               .running = f.running,
                               .update_running = f.update_running,
                               .epsilon = norm.options.epsilon,
                               .momentum = norm.options.momentum};
    const LaunchShape warps = channel_warps(norm.channels);
    if (f.across == nullptr) return launch(statistics_kernel<T>, warps, stream, tiling, x, sums, out);
    auto* mine = static_cast<Moments*>(norm.told(f.scratch));
    launch(told_moments_kernel<T>, warps, stream, tiling, x, sums, mine);
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
