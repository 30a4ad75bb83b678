// SPDX-License-Identifier: Apache-2.0
//
// Memory traffic per element: one read, one written. Tiles go through shared memory, so that both the reads
// and the writes of a warp are to adjacent memory.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/reorder.h"

namespace lockstep {
namespace {

constexpr int kTile = 32;
constexpr int kThreadRows = 8;

template <typename T>
__global__ void __launch_bounds__(kTile* kThreadRows) reorder_kernel(CudaReorder p, const T* from, T* to) {
  __shared__ T tile[kTile][kTile + 1];
  const int lane = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(threadIdx.y);
  const std::int64_t first_column = std::int64_t{blockIdx.x} * kTile;
  const bool along_rows = p.from_column != 1;  // rows are adjacent in `from`
  for (std::int64_t outer = blockIdx.z; outer < p.outer; outer += gridDim.z) {
    for (std::int64_t first_row = std::int64_t{blockIdx.y} * kTile; first_row < p.rows;
         first_row += std::int64_t{gridDim.y} * kTile) {
      for (int i = first; i < kTile; i += kThreadRows) {
        const int r = along_rows ? lane : i;
        const int c = along_rows ? i : lane;
        const std::int64_t row = first_row + r;
        const std::int64_t column = first_column + c;
        if (row >= p.rows || column >= p.columns) continue;
        tile[r][c] = T{};
        if (column < p.from_columns) {
          tile[r][c] = from[outer * p.from_outer + row * p.from_row + column * p.from_column];
        }
      }
      __syncthreads();
      const std::int64_t column = first_column + lane;
      for (int r = first; r < kTile; r += kThreadRows) {
        const std::int64_t row = first_row + r;
        if (row < p.rows && column < p.columns)
          to[(outer * p.rows + row) * p.columns + column] = tile[r][lane];
      }
      __syncthreads();  // before the next tile is written
    }
  }
}

template <typename T>
void run(Stream& stream, const CudaReorder& p, const void* from, void* to) {
  constexpr std::int64_t kMostBlocks = 65535;  // CUDA's limit for grid.y and .z
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ceil_div(p.columns, kTile)),
                                       static_cast<unsigned>(std::min(ceil_div(p.rows, kTile), kMostBlocks)),
                                       static_cast<unsigned>(std::min(p.outer, kMostBlocks))),
                          .block = dim3(kTile, kThreadRows)};
  launch(reorder_kernel<T>, shape, stream, p, static_cast<const T*>(from), static_cast<T*>(to));
}

}  // namespace

CudaReorder CudaReorder::between(const Layout& from, const Layout& to) {
  CHECK(from.shape() == to.shape() && from.dtype() == to.dtype(),
        "a reorder requires equal shapes and types: {}, {}", from.describe(), to.describe());
  const ChannelsLast* source = arrangement_of(from);
  const ChannelsLast* target = arrangement_of(to);
  const std::int64_t elements = from.shape().elements();
  if (source == nullptr && target == nullptr) {
    return {.element_bytes = size_of(from.dtype()),
            .outer = 1,
            .rows = 1,
            .columns = elements,
            .from_columns = elements,
            .from_column = 1};
  }
  const ChannelsLast& view = source != nullptr ? *source : *target;
  CHECK(target == nullptr || (target->outer == view.outer && target->channels == view.channels &&
                              target->pixels == view.pixels),
        "a reorder requires equal shapes and types: {}, {}", from.describe(), to.describe());
  const std::int64_t by_channel = source != nullptr ? 1 : view.pixels;
  const std::int64_t by_pixel = source != nullptr ? source->physical_channels : 1;
  CudaReorder made{
      .element_bytes = size_of(from.dtype()),
      .outer = view.outer,
      .from_outer = view.pixels * (source != nullptr ? source->physical_channels : view.channels)};
  if (target != nullptr) {
    made.rows = view.pixels;
    made.columns = target->physical_channels;
    made.from_columns = view.channels;
    made.from_row = by_pixel;
    made.from_column = by_channel;
  } else {
    made.rows = view.channels;
    made.columns = made.from_columns = view.pixels;
    made.from_row = by_channel;
    made.from_column = by_pixel;
  }
  return made;
}

void cuda_reorder(Stream& stream, const CudaReorder& p, const void* from, void* to) {
  if (p.outer * p.rows * p.columns == 0) return;
  CHECK(p.element_bytes == 2 || p.element_bytes == 4, "elements have {} bytes, expected 2 or 4",
        p.element_bytes);
  if (p.element_bytes == 2) return run<std::uint16_t>(stream, p, from, to);
  run<std::uint32_t>(stream, p, from, to);
}

}  // namespace lockstep
