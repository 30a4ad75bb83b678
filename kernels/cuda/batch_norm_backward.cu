// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element, in 16-byte accesses if the number of channels is a multiple of 8: both
// passes read x and y's gradient, the second writes x's gradient: five elements (20 bytes in fp32, 10 in half
// types). With a residual, both passes also read the activation's bits (1/4) and the second writes the
// residual's gradient (24, 12), except without an activation if that gradient takes the memory of y's.
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
  const std::uint8_t* passed;  // null: x determines the activation's input
  const float* mean;
  const float* inverse;
  BatchNormParameters parameters;
};

// The inputs of one row, for the channels of one thread.
template <int kLanes, typename T>
struct GivenRow {
  Pack<T, kLanes> x, y_gradient;
  unsigned passed;  // one bit per channel

  template <bool kPassed>
  static __device__ GivenRow read(const Tiling& t, const GivenTensors<T>& given, std::int64_t row,
                                  int channel) {
    const std::int64_t at = row * t.channels + channel;
    GivenRow values = {load_pack<kLanes>(given.x + at), load_pack<kLanes>(given.y_gradient + at), 0};
    if constexpr (kPassed)
      values.passed =
          unsigned{given.passed[row * passed_row_bytes(t.channels) + channel / 8]} >> (channel % 8);
    return values;
  }
};

// Returns g, the gradient of the activation's input, for one channel. With kPassed, `passed` decides whether
// the activation passed its input; otherwise the output is recomputed from x and the activation's derivative
// is applied.
template <bool kPassed, typename Function>
__device__ inline float passed_gradient(Function function, float gradient, bool passed, float distance,
                                        float slope, float shift) {
  if constexpr (kPassed) return passed ? gradient : 0.0f;
  return function.gradient(function(distance * slope + shift), gradient);
}

template <int kLanes, bool kPassed, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads, kReductionResident<T>)
    gradient_sums_kernel(Tiling t, GivenTensors<T> given, Function function, WarpSums* partial) {
  const Part<kLanes> part(t);
  Lanes<kLanes> sum = {}, product = {};
  if (part.has_channel) {
    Lanes<kLanes> mean, slope, shift;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      mean[i] = given.mean[part.channel + i];
      slope[i] = given.parameters.scale[part.channel + i] * given.inverse[part.channel + i];
      shift[i] = given.parameters.shift[part.channel + i];
    }
    using Row = GivenRow<kLanes, T>;
    part.template for_rows<1, Row>(
        [&](std::int64_t row) { return Row::template read<kPassed>(t, given, row, part.channel); },
        [&](std::int64_t, const Row& values) {
          const Lanes<kLanes> x = to_lanes(values.x), y_gradient = to_lanes(values.y_gradient);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) {
            const float distance = x[i] - mean[i];
            const float gradient = passed_gradient<kPassed>(
                function, y_gradient[i], (values.passed >> i & 1u) != 0, distance, slope[i], shift[i]);
            sum[i] += gradient;
            product[i] += gradient * distance;
          }
        });
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

// x's gradient = factor * (g + (by_distance * (x - mean) + constant)). The factor is applied last: factor *
// by_distance contains the third power of 1 / deviation and could underflow although the result does not.
struct Coefficients {
  float* factor;
  float* by_distance;
  float* constant;
  const float* scale;
  const float* inverse;
  double count;  // values per channel, over all ranks

  __device__ void write(int channel, const GradientSums& all) const {
    const auto deviations = static_cast<double>(inverse[channel]);
    factor[channel] = static_cast<float>(static_cast<double>(scale[channel]) * deviations);
    by_distance[channel] = static_cast<float>(-deviations * deviations * all.product / count);
    constant[channel] = static_cast<float>(-all.sum / count);
  }
};

// The gradients of this rank's parameters, [channels].
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

// For several ranks: this kernel writes the rank's own parameter gradients and sums, [channels]. After the
// gather, coefficients_of_ranks_kernel combines the sums of all ranks, [ranks, channels].
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

// For frozen batch norm, whose statistics do not depend on x: the sums do not contribute.
__global__ void __launch_bounds__(kBlockThreads) frozen_coefficients_kernel(int channels, Coefficients out) {
  const int channel = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (channel < channels) out.write(channel, GradientSums{});
}

template <typename T>
struct GradientTensors {
  T* x_gradient;         // may be y_gradient
  T* residual_gradient;  // null without a residual; may be y_gradient
};

template <int kLanes, bool kPassed, typename T, typename Function>
__global__ void __launch_bounds__(kBlockThreads, kElementwiseResident<T>)
    input_gradient_kernel(Tiling t, GivenTensors<T> given, Function function, Coefficients coefficients,
                          GradientTensors<T> out) {
  const Part<kLanes> part(t);
  if (!part.has_channel) return;
  // factor has the same bits as the slope that forward used: both are scale * inverse, rounded once.
  Lanes<kLanes> mean, shift, factor, by_distance, constant;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    mean[i] = given.mean[part.channel + i];
    shift[i] = given.parameters.shift[part.channel + i];
    factor[i] = coefficients.factor[part.channel + i];
    by_distance[i] = coefficients.by_distance[part.channel + i];
    constant[i] = coefficients.constant[part.channel + i];
  }
  using Row = GivenRow<kLanes, T>;
  part.template for_rows<kElementwiseRows, Row>(
      [&](std::int64_t row) { return Row::template read<kPassed>(t, given, row, part.channel); },
      [&](std::int64_t row, const Row& values) {
        const std::int64_t at = row * t.channels + part.channel;
        const Lanes<kLanes> x = to_lanes(values.x);
        Lanes<kLanes> gradient = to_lanes(values.y_gradient), x_gradient;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float distance = x[i] - mean[i];
          gradient[i] = passed_gradient<kPassed>(function, gradient[i], (values.passed >> i & 1u) != 0,
                                                 distance, factor[i], shift[i]);
          x_gradient[i] = factor[i] * (gradient[i] + (by_distance[i] * distance + constant[i]));
        }
        if (out.residual_gradient != nullptr) store(out.residual_gradient + at, gradient);
        store(out.x_gradient + at, x_gradient);
      });
}

// Computes the coefficients from the sums of the slices, [slices, channels], over one rank or over all.
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
  // Without an activation the residual's gradient equals y's gradient. In the same memory it is not written.
  const bool in_place = norm.options.activation == Activation::none && b.residual_gradient == b.y_gradient;
  void* residual_gradient = norm.options.residual && !in_place ? b.residual_gradient : nullptr;
  const auto row = [&](std::size_t index) { return BatchNormMemory::row(b.scratch, norm.channels, index); };
  const Coefficients coefficients{.factor = row(0),
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
        const auto backward = [&](auto function, auto by_passed) {
          using Function = decltype(function);
          constexpr bool kPassed = decltype(by_passed)::value;
          if (norm.options.frozen) {
            launch(frozen_coefficients_kernel, channel_threads(norm.channels), stream,
                   static_cast<int>(norm.channels), coefficients);
          } else {
            launch(gradient_sums_kernel<kLanes, kPassed, T, Function>, reduction.shape(), stream, reduction,
                   given, function, partial);
            set_coefficients(stream, norm, b, reduction, partial, parameters, coefficients);
          }
          launch(input_gradient_kernel<kLanes, kPassed, T, Function>, elementwise.shape(), stream,
                 elementwise, given, function, coefficients, out);
        };
        if (passed != nullptr) return backward(Identity{}, std::true_type());
        with_activation(norm.options.activation,
                        [&](auto function) { backward(function, std::false_type()); });
      });
}

}  // namespace lockstep
