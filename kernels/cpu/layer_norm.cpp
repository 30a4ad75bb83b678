// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/layer_norm_functors.h"

namespace lockstep {
namespace {

// Features whose parameter gradients a thread sums at a time.
constexpr std::int64_t kColumns = 64;

template <typename T>
void normalize_sample(const LayerNormForward& a, std::int64_t sample) {
  const T* x = static_cast<const T*>(a.x) + sample * a.features;
  T* y = static_cast<T*>(a.y) + sample * a.features;
  const auto count = static_cast<double>(a.features);
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < a.features; ++i) sum += static_cast<double>(static_cast<float>(x[i]));
  const double mean = sum / count;
  for (std::int64_t i = 0; i < a.features; ++i) {
    const double distance = static_cast<double>(static_cast<float>(x[i])) - mean;
    squares += distance * distance;
  }
  const LayerNormMoments moments = layer_norm_moments(mean, squares / count, a.epsilon);
  for (std::int64_t i = 0; i < a.features; ++i)
    y[i] = static_cast<T>(normalized(moments, static_cast<float>(x[i])) * a.scale[i] + a.shift[i]);
  if (a.moments != nullptr) a.moments[sample] = moments;
}

template <typename T>
void input_gradient_of_sample(const LayerNormBackward& a, std::int64_t sample) {
  const T* x = static_cast<const T*>(a.x) + sample * a.features;
  const T* y_gradient = static_cast<const T*>(a.y_gradient) + sample * a.features;
  T* x_gradient = static_cast<T*>(a.x_gradient) + sample * a.features;
  const LayerNormMoments moments = a.moments[sample];
  const auto count = static_cast<double>(a.features);
  double sum = 0, product = 0;
  for (std::int64_t i = 0; i < a.features; ++i) {
    const float g = a.scale[i] * static_cast<float>(y_gradient[i]);
    sum += static_cast<double>(g);
    product += static_cast<double>(g * normalized(moments, static_cast<float>(x[i])));
  }
  const auto mean_g = static_cast<float>(sum / count), mean_product = static_cast<float>(product / count);
  for (std::int64_t i = 0; i < a.features; ++i) {
    const float g = a.scale[i] * static_cast<float>(y_gradient[i]);
    x_gradient[i] =
        static_cast<T>(layer_norm_slope(moments, static_cast<float>(x[i]), g, mean_g, mean_product));
  }
}

// Sums over the samples in order, for at most kColumns features [begin, end): the result does not depend on
// the threads.
template <typename T>
void parameter_gradients(const LayerNormBackward& a, std::int64_t begin, std::int64_t end) {
  double scale[kColumns] = {}, shift[kColumns] = {};
  for (std::int64_t sample = 0; sample < a.batch; ++sample) {
    const T* y_gradient = static_cast<const T*>(a.y_gradient) + sample * a.features;
    const T* x = static_cast<const T*>(a.x) + sample * a.features;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto g = static_cast<float>(y_gradient[i]);
      scale[i - begin] += static_cast<double>(g * normalized(a.moments[sample], static_cast<float>(x[i])));
      shift[i - begin] += static_cast<double>(g);
    }
  }
  const bool adds = a.write == Write::accumulate;
  for (std::int64_t i = begin; i < end; ++i) {
    a.scale_gradient[i] = (adds ? a.scale_gradient[i] : 0.0f) + static_cast<float>(scale[i - begin]);
    a.shift_gradient[i] = (adds ? a.shift_gradient[i] : 0.0f) + static_cast<float>(shift[i - begin]);
  }
}

}  // namespace

void CpuBackend::layer_norm_forward(Stream&, const LayerNormForward& a) {
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    deal(a.batch, threads_for(a.batch * a.features),
         [&](std::int64_t sample) { normalize_sample<T>(a, sample); });
  });
}

void CpuBackend::layer_norm_backward(Stream&, const LayerNormBackward& a) {
  const int threads = threads_for(a.batch * a.features);
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    if (a.scale_gradient != nullptr) {
      deal((a.features + kColumns - 1) / kColumns, threads, [&](std::int64_t piece) {
        parameter_gradients<T>(a, piece * kColumns, std::min(a.features, (piece + 1) * kColumns));
      });
    }
    if (a.x_gradient != nullptr)
      deal(a.batch, threads, [&](std::int64_t sample) { input_gradient_of_sample<T>(a, sample); });
  });
}

}  // namespace lockstep
