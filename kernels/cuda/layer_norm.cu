// SPDX-License-Identifier: Apache-2.0
//
// One block computes one sample. Bytes of memory traffic per element: forward reads one element, two more
// times from the cache, and writes one (8 bytes in fp32, 4 in half types); backward reads two and writes one
// (12, 6). The gradients of the parameters read two (8, 4); a thread sums one feature over the samples.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layer_norm.h"
#include "kernels/cuda/reduce.h"
#include "kernels/layer_norm_functors.h"

namespace lockstep {
namespace {

template <typename T>
__global__ void __launch_bounds__(kBlockThreads) layer_norm_forward_kernel(LayerNormForward a) {
  const std::int64_t sample = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + sample * a.features;
  T* y = static_cast<T*>(a.y) + sample * a.features;
  const auto count = static_cast<double>(a.features);
  double sum = 0, squares = 0;
  for (std::int64_t i = threadIdx.x; i < a.features; i += kBlockThreads)
    sum += static_cast<double>(to_float(x[i]));
  const double mean = block_sum(sum) / count;
  for (std::int64_t i = threadIdx.x; i < a.features; i += kBlockThreads) {
    const double distance = static_cast<double>(to_float(x[i])) - mean;
    squares += distance * distance;
  }
  const LayerNormMoments moments = layer_norm_moments(mean, block_sum(squares) / count, a.epsilon);
  for (std::int64_t i = threadIdx.x; i < a.features; i += kBlockThreads)
    y[i] = from_float<T>(normalized(moments, to_float(x[i])) * a.scale[i] + a.shift[i]);
  if (threadIdx.x == 0 && a.moments != nullptr) a.moments[sample] = moments;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads) layer_norm_input_kernel(LayerNormBackward a) {
  const std::int64_t sample = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + sample * a.features;
  const T* y_gradient = static_cast<const T*>(a.y_gradient) + sample * a.features;
  T* x_gradient = static_cast<T*>(a.x_gradient) + sample * a.features;
  const LayerNormMoments moments = a.moments[sample];
  const auto count = static_cast<double>(a.features);
  double sum = 0, product = 0;
  for (std::int64_t i = threadIdx.x; i < a.features; i += kBlockThreads) {
    const float g = a.scale[i] * to_float(y_gradient[i]);
    sum += static_cast<double>(g);
    product += static_cast<double>(g * normalized(moments, to_float(x[i])));
  }
  const float mean_g = static_cast<float>(block_sum(sum) / count);
  const float mean_product = static_cast<float>(block_sum(product) / count);
  for (std::int64_t i = threadIdx.x; i < a.features; i += kBlockThreads) {
    const float g = a.scale[i] * to_float(y_gradient[i]);
    x_gradient[i] = from_float<T>(layer_norm_slope(moments, to_float(x[i]), g, mean_g, mean_product));
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads) layer_norm_parameters_kernel(LayerNormBackward a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= a.features) return;
  double scale = 0, shift = 0;
  for (std::int64_t sample = 0; sample < a.batch; ++sample) {
    const std::int64_t at = sample * a.features + i;
    const float g = to_float(static_cast<const T*>(a.y_gradient)[at]);
    scale += static_cast<double>(g * normalized(a.moments[sample], to_float(static_cast<const T*>(a.x)[at])));
    shift += static_cast<double>(g);
  }
  const bool adds = a.write == Write::accumulate;
  a.scale_gradient[i] = (adds ? a.scale_gradient[i] : 0.0f) + static_cast<float>(scale);
  a.shift_gradient[i] = (adds ? a.shift_gradient[i] : 0.0f) + static_cast<float>(shift);
}

}  // namespace

void cuda_layer_norm_forward(Stream& stream, const LayerNormForward& a) {
  if (a.batch * a.features == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    launch(layer_norm_forward_kernel<T>,
           {.grid = dim3(static_cast<unsigned>(a.batch)), .block = dim3(kBlockThreads)}, stream, a);
  });
}

void cuda_layer_norm_backward(Stream& stream, const LayerNormBackward& a) {
  if (a.features == 0) return;
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    if (a.scale_gradient != nullptr)
      launch(layer_norm_parameters_kernel<T>,
             {.grid = dim3(static_cast<unsigned>(ceil_div(a.features, std::int64_t{kBlockThreads}))),
              .block = dim3(kBlockThreads)},
             stream, a);
    if (a.x_gradient != nullptr && a.batch > 0)
      launch(layer_norm_input_kernel<T>,
             {.grid = dim3(static_cast<unsigned>(a.batch)), .block = dim3(kBlockThreads)}, stream, a);
  });
}

}  // namespace lockstep
