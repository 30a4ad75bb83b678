// SPDX-License-Identifier: Apache-2.0
//
// Bytes per element, in 16-byte accesses where the channels are multiples of 8: both passes read x and y's
// gradient, the second writes x's: five elements (20 in fp32, 10 in half types). With a residual the bits of
// the activation are read twice (1/4) and the residual's gradient is written, too (24, 12).
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/batch_norm_memory.h"
#include "kernels/cuda/tiling.h"
#include "kernels/functors.h"
#include "kernels/moments.h"

namespace lockstep {
namespace {

struct WarpSums : GradientSums {
  __device__ WarpSums of_lane(unsigned distance) const {
    const int mask = static_cast<int>(distance);
    return {{__shfl_xor_sync(kWholeWarp, sum, mask), __shfl_xor_sync(kWholeWarp, product, mask)}};
  }
};

template <typename T>
struct GivenTensors {
  const T* x;
  const T* y_gradient;
  const std::uint8_t* passed;  // null: the activation's input follows from x
  const float* mean;
  const float* inverse;
  BatchNormParameters parameters;
};

// What a thread knows of its channels.
template <int kLanes>
struct ChannelValues {
  Lanes<kLanes> mean, slope, shift;

  template <typename T>
  __device__ ChannelValues(const GivenTensors<T>& given, int channel) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      mean[i] = given.mean[channel + i];
      slope[i] = given.parameters.scale[channel + i] * given.inverse[channel + i];
      shift[i] = given.parameters.shift[channel + i];
    }
  }
};

// x - mean and g of some channels of one row.
template <int kLanes>
struct RowValues {
  Lanes<kLanes> distance, gradient;

  template <typename T, typename Function>
  __device__ RowValues(const Tiling& t, const GivenTensors<T>& given, const ChannelValues<kLanes>& channels,
                       Function function, std::int64_t row, int channel) {
    const std::int64_t at = row * t.channels + channel;
    distance = load<kLanes>(given.x + at);
    gradient = load<kLanes>(given.y_gradient + at);
    unsigned passed = 0;
    if (given.passed != nullptr) {
      passed = unsigned{given.passed[row * passed_row_bytes(t.channels) + channel / 8]} >> (channel % 8);
    }
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      distance[i] -= channels.mean[i];
      if (given.passed != nullptr) {
        gradient[i] = (passed >> i & 1u) != 0 ? gradient[i] : 0.0f;
      } else {
        const float y = function(distance[i] * channels.slope[i] + channels.shift[i]);
        gradient[i] = function.gradient(y, gradient[i]);
      }
    }
  }
};

template <int kLanes, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads)
    gradient_sums_kernel(Tiling t, GivenTensors<T> given, Function function, WarpSums* partial) {
  const Part<kLanes> part(t);
  Lanes<kLanes> sum = {}, product = {};
  if (part.has_channel) {
    const ChannelValues<kLanes> channels(given, part.channel);
#pragma unroll 2
    for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
      const RowValues<kLanes> values(t, given, channels, function, row, part.channel);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        sum[i] += values.gradient[i];
        product[i] += values.gradient[i] * values.distance[i];
      }
    }
  }
  WarpSums sums[kLanes] = {};
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    sums[i] = {{static_cast<double>(sum[i]), static_cast<double>(product[i])}};
  }
  sum_over_rows(t, sums, [&](int channel, const WarpSums& total) {
    partial[std::int64_t{blockIdx.y} * t.channels + channel] = total;
  });
}

// x's gradient = by_gradient * g + by_distance * (x - mean) + constant.
struct Coefficients {
  float* by_gradient;
  float* by_distance;
  float* constant;
  const float* scale;
  const float* inverse;
  double count;  // of values, over all ranks

  __device__ void write(int channel, const GradientSums& all) const {
    const auto deviations = static_cast<double>(inverse[channel]);
    const double factor = static_cast<double>(scale[channel]) * deviations;
    by_gradient[channel] = static_cast<float>(factor);
    by_distance[channel] = static_cast<float>(-factor * deviations * deviations * all.product / count);
    constant[channel] = static_cast<float>(-factor * all.sum / count);
  }
};

// This rank's.
struct ParameterGradients {
  const float* inverse;
  float* scale_gradient;
  float* shift_gradient;
  bool adds;

  __device__ void write(int channel, const GradientSums& sums) const {
    const auto of_scale = static_cast<float>(sums.product * static_cast<double>(inverse[channel]));
    const auto of_shift = static_cast<float>(sums.sum);
    float& scale = scale_gradient[channel];
    float& shift = shift_gradient[channel];
    scale = adds ? scale + of_scale : of_scale;
    shift = adds ? shift + of_shift : of_shift;
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    coefficients_kernel(Tiling t, const WarpSums* partial, ParameterGradients parameters, Coefficients out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const WarpSums all = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads != 0) return;
  parameters.write(channel, all);
  out.write(channel, all);
}

// The same of several ranks: what this one tells, and, when all have told, what all tell.
__global__ void __launch_bounds__(kBlockThreads)
    told_sums_kernel(Tiling t, const WarpSums* partial, ParameterGradients parameters, GradientSums* mine) {
  const int channel = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (channel >= t.channels) return;  // the whole warp
  const WarpSums total = sum_over_slices(partial, t, channel);
  if (threadIdx.x % kWarpThreads != 0) return;
  parameters.write(channel, total);
  mine[channel] = total;
}
__global__ void __launch_bounds__(kBlockThreads)
    coefficients_of_ranks_kernel(int channels, int ranks, GradientSums* told, Coefficients out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel < channels) out.write(channel, sum_along_tree(told + channel, ranks, channels));
}

// Of moments that do not depend on x.
__global__ void __launch_bounds__(kBlockThreads) frozen_coefficients_kernel(int channels, Coefficients out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel < channels) out.write(channel, GradientSums{});
}

template <typename T>
struct GradientTensors {
  T* x_gradient;         // may be y's
  T* residual_gradient;  // null without; may be y's
};

template <int kLanes, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads)
    input_gradient_kernel(Tiling t, GivenTensors<T> given, Function function, Coefficients coefficients,
                          GradientTensors<T> out) {
  const Part<kLanes> part(t);
  if (!part.has_channel) return;
  const ChannelValues<kLanes> channels(given, part.channel);
  Lanes<kLanes> by_gradient, by_distance, constant;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    by_gradient[i] = coefficients.by_gradient[part.channel + i];
    by_distance[i] = coefficients.by_distance[part.channel + i];
    constant[i] = coefficients.constant[part.channel + i];
  }
  for (std::int64_t row = part.first_row; row < part.end_row; row += part.row_step) {
    const std::int64_t at = row * t.channels + part.channel;
    const RowValues<kLanes> values(t, given, channels, function, row, part.channel);
    Lanes<kLanes> gradient;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      gradient[i] = by_gradient[i] * values.gradient[i] + by_distance[i] * values.distance[i] + constant[i];
    }
    if (out.residual_gradient != nullptr) store(out.residual_gradient + at, values.gradient);
    store(out.x_gradient + at, gradient);
  }
}

// From the slices' sums, on one rank or over all of them.
void set_coefficients(Stream& stream, const CudaBatchNorm& norm, const BatchNormBackward& b,
                      const Tiling& tiling, const WarpSums* partial, const ParameterGradients& parameters,
                      const Coefficients& out) {
  const LaunchShape warps = channel_warps(norm.channels);
  if (b.across == nullptr)
    return launch(coefficients_kernel, warps, stream, tiling, partial, parameters, out);
  auto* mine = static_cast<GradientSums*>(norm.told(b.scratch));
  launch(told_sums_kernel, warps, stream, tiling, partial, parameters, mine);
  auto* told =
      static_cast<GradientSums*>(norm.gather_told(stream, *b.across, b.scratch, sizeof(GradientSums)));
  launch(coefficients_of_ranks_kernel, channel_threads(norm.channels), stream,
         static_cast<int>(norm.channels), norm.options.ranks, told, out);
}

}  // namespace

void cuda_batch_norm_backward(Stream& stream, const CudaBatchNorm& norm, const BatchNormBackward& b) {
  if (norm.rows * norm.channels == 0) return;
  void* residual_gradient = norm.options.residual ? b.residual_gradient : nullptr;
  const auto row = [&](std::size_t index) { return BatchNormMemory::row(b.scratch, norm.channels, index); };
  const Coefficients coefficients{.by_gradient = row(0),
                                  .by_distance = row(1),
                                  .constant = row(2),
                                  .scale = b.parameters.scale,
                                  .inverse = BatchNormMemory::row(b.saved, norm.channels, 1),
                                  .count = static_cast<double>(norm.rows * norm.options.ranks)};
  auto* partial = reinterpret_cast<WarpSums*>(row(3));
  const float* inverse = BatchNormMemory::row(b.saved, norm.channels, 1);
  with_channels(
      norm, aligned(b.x, b.y_gradient, b.x_gradient, residual_gradient), [&](auto element, auto lanes) {
        using T = typename decltype(element)::type;
        constexpr int kLanes = decltype(lanes)::value;
        const float* passed = norm.keeps_passed() ? BatchNormMemory::row(b.saved, norm.channels, 2) : nullptr;
        const GivenTensors<T> given{.x = static_cast<const T*>(b.x),
                                    .y_gradient = static_cast<const T*>(b.y_gradient),
                                    .passed = reinterpret_cast<const std::uint8_t*>(passed),
                                    .mean = BatchNormMemory::row(b.saved, norm.channels, 0),
                                    .inverse = inverse,
                                    .parameters = b.parameters};
        const ParameterGradients parameters{.inverse = inverse,
                                            .scale_gradient = b.scale_gradient,
                                            .shift_gradient = b.shift_gradient,
                                            .adds = b.write == Write::accumulate};
        const GradientTensors<T> out{.x_gradient = static_cast<T*>(b.x_gradient),
                                     .residual_gradient = static_cast<T*>(residual_gradient)};
        const Tiling reduction = Tiling::of(norm, kLanes, kReductionBlocks);
        const Tiling elementwise = Tiling::of(norm, kLanes, enough_blocks(stream.device()));
        with_activation(norm.options.activation, [&](auto function) {
          using Function = decltype(function);
          if (norm.options.frozen) {
            launch(frozen_coefficients_kernel, channel_threads(norm.channels), stream,
                   static_cast<int>(norm.channels), coefficients);
          } else {
            launch(gradient_sums_kernel<kLanes, T, Function>, reduction.shape(), stream, reduction, given,
                   function, partial);
            set_coefficients(stream, norm, b, reduction, partial, parameters, coefficients);
          }
          launch(input_gradient_kernel<kLanes, T, Function>, elementwise.shape(), stream, elementwise, given,
                 function, coefficients, out);
        });
      });
}

}  // namespace lockstep
