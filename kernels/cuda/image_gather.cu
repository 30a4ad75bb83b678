// SPDX-License-Identifier: Apache-2.0
//
// Every byte is read once and written once, in the widest accesses for which every image is aligned.
// blockIdx.x is the image; the blocks of blockIdx.y share it.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/image_gather.h"
#include "kernels/cuda/launch.h"

namespace lockstep {
namespace {

template <typename Word>
__global__ void __launch_bounds__(kBlockThreads)
    image_gather_kernel(std::int64_t words, const Word* images, const std::int32_t* rows, Word* output) {
  const std::int64_t row = rows[blockIdx.x];
  const Word* from = images + (row < 0 ? 0 : row) * words;
  Word* to = output + std::int64_t{blockIdx.x} * words;
  for (std::int64_t i = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < words;
       i += std::int64_t{gridDim.y} * blockDim.x)
    to[i] = row < 0 ? Word{} : from[i];
}

template <typename Word>
void gather(Stream& stream, const ImageGather& a) {
  constexpr std::int64_t kMostBlocks = 256;  // per image
  const std::int64_t words = a.image_bytes / static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t warps = ceil_div(words, std::int64_t{kWarpThreads});
  const std::int64_t threads = std::min<std::int64_t>(warps * kWarpThreads, kBlockThreads);
  const std::int64_t blocks = std::min(ceil_div(words, threads), kMostBlocks);
  launch(image_gather_kernel<Word>,
         {.grid = dim3(static_cast<unsigned>(a.batch), static_cast<unsigned>(blocks)),
          .block = dim3(static_cast<unsigned>(threads))},
         stream, words, reinterpret_cast<const Word*>(a.images), a.rows, reinterpret_cast<Word*>(a.output));
}

}  // namespace

void cuda_gather_images(Stream& stream, const ImageGather& a) {
  if (a.batch == 0 || a.image_bytes == 0) return;
  if (a.image_bytes % 16 == 0) return gather<uint4>(stream, a);
  if (a.image_bytes % 4 == 0) return gather<std::uint32_t>(stream, a);
  gather<std::uint8_t>(stream, a);
}

}  // namespace lockstep
