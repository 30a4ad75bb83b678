// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep {
namespace {

// Calls body(first channel's index) for each row.
template <typename Body>
void for_each_softmax_row(const SoftmaxShape& s, Body body) {
  constexpr std::int64_t kRows = 64;
  const int threads = threads_for(s.rows() * s.channels);
  deal((s.rows() + kRows - 1) / kRows, threads, [&](std::int64_t piece) {
    for (std::int64_t row = piece * kRows; row < std::min(s.rows(), (piece + 1) * kRows); ++row)
      body(s.row_begin(row));
  });
}

template <typename T>
void softmax_forward(const SoftmaxForward& a) {
  const auto* x = static_cast<const T*>(a.x);
  auto* y = static_cast<T*>(a.y);
  const std::int64_t stride = a.shape.positions, end = a.shape.channels * stride;
  for_each_softmax_row(a.shape, [&](std::int64_t begin) {
    auto largest = static_cast<float>(x[begin]);
    for (std::int64_t i = stride; i < end; i += stride)
      largest = std::max(largest, static_cast<float>(x[begin + i]));
    double sum = 0;
    for (std::int64_t i = 0; i < end; i += stride)
      sum += static_cast<double>(std::exp(static_cast<float>(x[begin + i]) - largest));
    for (std::int64_t i = 0; i < end; i += stride) {
      const float power = std::exp(static_cast<float>(x[begin + i]) - largest);
      y[begin + i] = static_cast<T>(static_cast<float>(static_cast<double>(power) / sum));
    }
  });
}

template <typename T>
void softmax_backward(const SoftmaxBackward& a) {
  const auto* y = static_cast<const T*>(a.y);
  const auto* y_gradient = static_cast<const T*>(a.y_gradient);
  auto* x_gradient = static_cast<T*>(a.x_gradient);
  const std::int64_t stride = a.shape.positions, end = a.shape.channels * stride;
  for_each_softmax_row(a.shape, [&](std::int64_t begin) {
    double product = 0;
    for (std::int64_t i = 0; i < end; i += stride)
      product +=
          static_cast<double>(static_cast<float>(y[begin + i]) * static_cast<float>(y_gradient[begin + i]));
    for (std::int64_t i = 0; i < end; i += stride)
      x_gradient[begin + i] =
          static_cast<T>(static_cast<float>(y[begin + i]) *
                         (static_cast<float>(y_gradient[begin + i]) - static_cast<float>(product)));
  });
}

}  // namespace

void CpuBackend::softmax_forward(Stream&, const SoftmaxForward& a) {
  with_element(a.shape.type,
               [&](auto element) { lockstep::softmax_forward<typename decltype(element)::type>(a); });
}

void CpuBackend::softmax_backward(Stream&, const SoftmaxBackward& a) {
  with_element(a.shape.type,
               [&](auto element) { lockstep::softmax_backward<typename decltype(element)::type>(a); });
}

}  // namespace lockstep
