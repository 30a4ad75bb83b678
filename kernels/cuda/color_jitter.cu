// SPDX-License-Identifier: Apache-2.0
//
// One block per image. Memory traffic per pixel: its channels are read once and written once; with contrast
// they are read a second time, mostly from the cache.
#include "kernels/color_jitter_functors.h"
#include "kernels/cuda/color_jitter.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

__global__ void __launch_bounds__(kBlockThreads) color_jitter_kernel(ColorJitterArguments a, Jitter jitter) {
  __shared__ float gray;
  const std::int64_t pixels = a.height * a.width;
  const std::uint8_t* from = a.images + blockIdx.x * pixels * a.channels;
  std::uint8_t* to = a.output + blockIdx.x * pixels * a.channels;
  Jitter::View view = jitter.view(a.samples[blockIdx.x]);
  if (jitter.needs_gray()) {
    double sum = 0;
    for (std::int64_t i = threadIdx.x; i < pixels; i += blockDim.x)
      sum += jitter.gray_before_contrast(jitter.load(from + i * a.channels), view);
    const double all = block_sum(sum);
    if (threadIdx.x == 0) gray = Jitter::mean_gray(all, pixels);
    __syncthreads();
    view.gray = gray;
  }
  for (std::int64_t i = threadIdx.x; i < pixels; i += blockDim.x)
    jitter.store(jitter(jitter.load(from + i * a.channels), view), to + i * a.channels);
}

}  // namespace

void cuda_color_jitter(Stream& stream, const ColorJitterArguments& a) {
  check_color_jitter(a.how, a.channels);
  if (a.batch == 0) return;
  launch(color_jitter_kernel, {.grid = dim3(static_cast<unsigned>(a.batch)), .block = dim3(kBlockThreads)},
         stream, a, Jitter::from(a));
}

}  // namespace lockstep
