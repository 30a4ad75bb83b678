// SPDX-License-Identifier: Apache-2.0
//
// One warp computes one row. Bytes of memory traffic per element: forward reads one element, two more times
// from the cache, and writes one (8 bytes in fp32, 4 in half types); backward reads two, once more from the
// cache, and writes one (12, 6). These numbers hold for rows of features. The channels of an image's row are
// `positions` elements apart, and each access moves a sector of 32 bytes.
#include "kernels/cuda/element.h"
#include "kernels/cuda/largest.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/softmax.h"

namespace lockstep {
namespace {

constexpr int kSoftmaxWarps = 4;  // per block

template <typename T>
__global__ void __launch_bounds__(kSoftmaxWarps* kWarpThreads)
    softmax_forward_kernel(SoftmaxForward a, std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * kSoftmaxWarps + threadIdx.x / kWarpThreads;
  if (row >= rows) return;  // the whole warp
  const std::int64_t begin = a.shape.row_begin(row), stride = a.shape.positions;
  const T* x = static_cast<const T*>(a.x) + begin;
  T* y = static_cast<T*>(a.y) + begin;
  Largest largest;
  for (std::int64_t k = lane; k < a.shape.channels; k += kWarpThreads)
    largest.take(to_float(x[k * stride]), static_cast<int>(k));
  largest = warp_largest(largest);
  double sum = 0;
  for (std::int64_t k = lane; k < a.shape.channels; k += kWarpThreads)
    sum += static_cast<double>(expf(to_float(x[k * stride]) - largest.value));
  sum = warp_sum(sum);
  for (std::int64_t k = lane; k < a.shape.channels; k += kWarpThreads) {
    const double power = static_cast<double>(expf(to_float(x[k * stride]) - largest.value));
    y[k * stride] = from_float<T>(static_cast<float>(power / sum));
  }
}

template <typename T>
__global__ void __launch_bounds__(kSoftmaxWarps* kWarpThreads)
    softmax_backward_kernel(SoftmaxBackward a, std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * kSoftmaxWarps + threadIdx.x / kWarpThreads;
  if (row >= rows) return;  // the whole warp
  const std::int64_t begin = a.shape.row_begin(row), stride = a.shape.positions;
  const T* y = static_cast<const T*>(a.y) + begin;
  const T* y_gradient = static_cast<const T*>(a.y_gradient) + begin;
  T* x_gradient = static_cast<T*>(a.x_gradient) + begin;
  double product = 0;
  for (std::int64_t k = lane; k < a.shape.channels; k += kWarpThreads)
    product += static_cast<double>(to_float(y[k * stride]) * to_float(y_gradient[k * stride]));
  const float sum = static_cast<float>(warp_sum(product));
  for (std::int64_t k = lane; k < a.shape.channels; k += kWarpThreads)
    x_gradient[k * stride] =
        from_float<T>(to_float(y[k * stride]) * (to_float(y_gradient[k * stride]) - sum));
}

LaunchShape over_rows(std::int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(ceil_div(rows, std::int64_t{kSoftmaxWarps}))),
          .block = dim3(kSoftmaxWarps * kWarpThreads)};
}

}  // namespace

void cuda_softmax_forward(Stream& stream, const SoftmaxForward& a) {
  if (a.shape.rows() == 0) return;
  with_element(a.shape.type, [&](auto element) {
    launch(softmax_forward_kernel<typename decltype(element)::type>, over_rows(a.shape.rows()), stream, a,
           a.shape.rows());
  });
}

void cuda_softmax_backward(Stream& stream, const SoftmaxBackward& a) {
  if (a.shape.rows() == 0) return;
  with_element(a.shape.type, [&](auto element) {
    launch(softmax_backward_kernel<typename decltype(element)::type>, over_rows(a.shape.rows()), stream, a,
           a.shape.rows());
  });
}

}  // namespace lockstep
