// SPDX-License-Identifier: Apache-2.0
//
// Bytes per element: one read, one written (8 in fp32, 4 in half types). Plain features share a block of
// random numbers among four; in an image each element needs its own, and arithmetic is the limit.
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

constexpr int kLanes = 8;

// A thread's elements are neighbours within one sample. blockIdx.y, .z: the sample.
template <typename T>
struct DropoutSample {
  std::int64_t channels;
  std::int64_t pixels;
  const SampleId* samples;
  Dropout dropout;
  const T* x;
  T* y;

  __device__ std::uint32_t word(SampleId sample, std::int64_t element) const {
    const std::int64_t feature = element % channels * pixels + element / channels;
    return dropout.words(sample,
                         static_cast<std::uint32_t>(feature / 4))[static_cast<std::size_t>(feature % 4)];
  }
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads) dropout_kernel(std::int64_t batch, DropoutSample<T> a) {
  const std::int64_t place = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  if (place >= batch) return;
  const std::int64_t features = a.channels * a.pixels;
  const std::int64_t first = kLanes * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (first >= features) return;
  const SampleId sample = a.samples[place];
  const T* x = a.x + place * features;
  T* y = a.y + place * features;
  const bool whole = first + kLanes <= features;
  std::uint32_t words[kLanes];
  if (a.pixels == 1) {
#pragma unroll
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      const PhiloxCounter four = a.dropout.words(sample, static_cast<std::uint32_t>(first / 4 + quad));
#pragma unroll
      for (int i = 0; i < 4; ++i) words[4 * quad + i] = four[static_cast<std::size_t>(i)];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) words[i] = a.word(sample, first + i);
  }
  if (whole && aligned(x, y)) {
    Lanes<kLanes> lanes = load<kLanes>(x + first);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = a.dropout(lanes[i], words[i]);
    store(y + first, lanes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if (first + i < features) y[first + i] = from_float<T>(a.dropout(to_float(x[first + i]), words[i]));
  }
}

}  // namespace

void cuda_dropout(Stream& stream, const CudaDropout& a) {
  CHECK(a.probability >= 0 && a.probability < 1, "a dropout probability of {}", a.probability);
  if (a.batch * a.channels * a.pixels == 0) return;
  constexpr std::int64_t kMostRows = 32768;  // CUDA's limit for grid.y is 65535
  const std::int64_t rows = a.batch < kMostRows ? a.batch : kMostRows;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ceil_div(a.channels * a.pixels, kBlockThreads * kLanes)),
                   static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(a.batch, rows))),
      .block = dim3(kBlockThreads)};
  with_element(a.type, [&](auto element) {
    using T = typename decltype(element)::type;
    const DropoutSample<T> sample{.channels = a.channels,
                                  .pixels = a.pixels,
                                  .samples = a.samples,
                                  .dropout = Dropout::from({.key = a.key, .probability = a.probability}),
                                  .x = static_cast<const T*>(a.x),
                                  .y = static_cast<T*>(a.y)};
    launch(dropout_kernel<T>, shape, stream, a.batch, sample);
  });
}

}  // namespace lockstep
