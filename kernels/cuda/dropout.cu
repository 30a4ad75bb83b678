// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per element, in 16-byte accesses if samples start aligned: one element read, one
// written (8 bytes in fp32, 4 in half types). Four features share a block of random numbers.
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

constexpr int kLanes = 8;

template <typename T>
struct Samples {
  std::int64_t batch;
  std::int64_t features;
  const SampleId* ids;
  const T* x;
  T* y;
};

// x, y: [batch, features]. A thread computes kLanes adjacent elements of one sample; blockIdx.y and .z select
// the sample.
template <typename T>
__global__ void __launch_bounds__(kMostBlockThreads) dropout_kernel(Samples<T> samples, Dropout dropout) {
  const std::int64_t place = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  if (place >= samples.batch) return;
  const std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first >= samples.features) return;
  const SampleId sample = samples.ids[place];
  const T* x = samples.x + place * samples.features;
  T* y = samples.y + place * samples.features;
  std::uint32_t words[kLanes];
#pragma unroll
  for (int quad = 0; quad < kLanes / 4; ++quad) {
    const PhiloxCounter four = dropout.words(sample, static_cast<std::uint32_t>(first / 4 + quad));
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 * quad + i] = four[static_cast<std::size_t>(i)];
  }
  if (first + kLanes <= samples.features && aligned(x, y)) {
    Lanes<kLanes> lanes = load<kLanes>(x + first);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = dropout(lanes[i], words[i]);
    store(y + first, lanes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if (first + i < samples.features) {
      y[first + i] = from_float<T>(dropout(to_float(x[first + i]), words[i]));
    }
  }
}

}  // namespace

void cuda_dropout(Stream& stream, const DropoutArguments& a) {
  CHECK(a.probability >= 0 && a.probability < 1, "dropout probability {}, expected at least 0 and below 1",
        a.probability);
  if (a.batch * a.features == 0) return;
  constexpr std::int64_t kMostRows = 32768;  // CUDA's limit for grid.y is 65535
  const std::int64_t rows = a.batch < kMostRows ? a.batch : kMostRows;
  const int threads = block_threads();
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ceil_div(a.features, threads * kLanes)), static_cast<unsigned>(rows),
                   static_cast<unsigned>(ceil_div(a.batch, rows))),
      .block = dim3(static_cast<unsigned>(threads))};
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    const Samples<T> samples{.batch = a.batch,
                             .features = a.features,
                             .ids = a.samples,
                             .x = static_cast<const T*>(a.x),
                             .y = static_cast<T*>(a.y)};
    launch(dropout_kernel<T>, shape, stream, samples, Dropout::from(a));
  });
}

}  // namespace lockstep
