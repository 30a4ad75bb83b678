// SPDX-License-Identifier: Apache-2.0
//
// Bytes of memory traffic per number: the selection reads gradient and residual twice, once to count and once
// to select (16, with a velocity 24), and writes the next residual and velocity (4, 8); the sum writes 4. A
// block counts and selects within a chunk of kSparseChunk numbers, each thread among adjacent ones, so that
// the selected numbers are in memory order. Counts are integers: the order of addition does not matter.
#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/sparse.h"
#include "kernels/sparse_functors.h"

namespace lockstep {
namespace {

constexpr int kEach = 16;  // numbers per thread
constexpr std::int64_t kChunk = kSparseChunk;
static_assert(kChunk == std::int64_t{kBlockThreads} * kEach);

// Scratch memory of a selection. chunks: first the number of selected numbers of each chunk, then the number
// in all earlier chunks.
struct Scratch {
  std::uint32_t* bins;
  SparseStage* stage;
  std::int32_t* not_finite;
  std::int32_t* chunks;

  static Scratch at(void* memory) {
    auto* bins = static_cast<std::uint32_t*>(memory);
    auto* stage = reinterpret_cast<SparseStage*>(bins + kSparseBins);
    auto* not_finite = reinterpret_cast<std::int32_t*>(stage + 1);
    return {.bins = bins, .stage = stage, .not_finite = not_finite, .chunks = not_finite + 1};
  }
};

struct Maker {
  SparseNumbers numbers;

  __device__ SparseNumber<float> at(const MakeSparseNumber& make, std::int64_t i) const {
    const float residual = numbers.residual == nullptr ? 0.0f : numbers.residual[i];
    if (numbers.velocity == nullptr) return {make(numbers.gradient[i], residual), 0.0f};
    return make(numbers.gradient[i], residual, numbers.velocity[i]);
  }
};

// One warp. sums: the parts of SquareSum over the gradient.
__global__ void __launch_bounds__(kWarpThreads) clip_kernel(SparseClip a, const double* sums) {
  double squares = 0;
  for (unsigned part = threadIdx.x; part < kSquareSums; part += kWarpThreads) squares += sums[part];
  squares = warp_sum(squares);
  const double scale = a.loss_scale == nullptr ? 1.0 : static_cast<double>(*a.loss_scale);
  if (threadIdx.x == 0) *a.clip = clip_factor(squares / (scale * scale), a.most);
}

__global__ void __launch_bounds__(kMostBlockThreads) clear_kernel(std::int64_t count, std::uint32_t* words) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) words[i] = 0;
}

__global__ void __launch_bounds__(kBlockThreads)
    bins_kernel(Maker maker, SparseSample sample, const SparseStage* stage, std::uint32_t* bins) {
  __shared__ std::uint32_t mine[kSparseBins];
  for (int bin = static_cast<int>(threadIdx.x); bin < kSparseBins; bin += static_cast<int>(blockDim.x))
    mine[bin] = 0;
  __syncthreads();
  const MakeSparseNumber make = MakeSparseNumber::from(maker.numbers);
  const std::int64_t all = sample.stretches() * SparseSample::kStretch;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t stretch = i / SparseSample::kStretch;
    const std::int64_t place = sample.begin(stretch) + i % SparseSample::kStretch;
    if (place >= sample.end(stretch)) continue;
    const int bin = sparse_bin(sparse_size(maker.at(make, place).value), stage);
    if (bin >= 0) atomicAdd(&mine[bin], 1u);
  }
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kSparseBins; bin += static_cast<int>(blockDim.x)) {
    if (mine[bin] != 0) atomicAdd(&bins[bin], mine[bin]);
  }
}

__global__ void stage_kernel(SparseSample sample, std::int64_t kept, Scratch scratch) {
  *scratch.stage = sparse_reached(scratch.bins, sample, kept, 0);
}

__global__ void threshold_kernel(SparseSample sample, std::int64_t kept, Scratch scratch,
                                 std::uint32_t* threshold) {
  const SparseStage coarse = *scratch.stage;
  *threshold = sparse_threshold(coarse, sparse_reached(scratch.bins, sample, kept, coarse.above));
}

// Returns the sum of `mine` over the threads before this one; `all` is the sum over the block.
__device__ inline int sum_before(int mine, int& all) {
  __shared__ int sums[kBlockThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = 1; distance < kBlockThreads; distance *= 2) {
    const int other = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += other;
    __syncthreads();
  }
  all = sums[kBlockThreads - 1];
  const int before = sums[threadIdx.x] - mine;
  __syncthreads();
  return before;
}

__global__ void __launch_bounds__(kBlockThreads) count_kernel(SparseSelection a, Scratch scratch) {
  const Maker maker{a.numbers};
  const MakeSparseNumber make = MakeSparseNumber::from(a.numbers);
  const std::uint32_t threshold = *a.threshold;
  const std::int64_t first = std::int64_t{blockIdx.x} * kChunk + std::int64_t{threadIdx.x} * kEach;
  int chosen = 0;
  bool not_finite = false;
  for (std::int64_t i = first; i < first + kEach && i < a.numbers.count; ++i) {
    const std::uint32_t size = sparse_size(maker.at(make, i).value);
    if (size >= threshold) ++chosen;
    not_finite |= size >= kSparseNotFinite;
  }
  int all = 0;
  sum_before(chosen, all);
  const bool found = __syncthreads_or(not_finite ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  scratch.chunks[blockIdx.x] = all;
  if (found) atomicOr(scratch.not_finite, 1);
}

// The number of entries that are sent of `chosen` selected numbers.
__device__ inline std::uint32_t sent(const SparseSelection& a, int chosen) {
  return static_cast<std::uint32_t>(chosen < a.capacity ? chosen : a.capacity);
}

// One block: replaces the counts of the chunks by the number of selected numbers before each, and writes the
// message's heads. Clears the entries after the last selected one.
__global__ void __launch_bounds__(kBlockThreads)
    places_kernel(SparseSelection a, Scratch scratch, std::int64_t chunks) {
  int before = 0;
  for (std::int64_t begin = 0; begin < chunks; begin += kBlockThreads) {
    const std::int64_t i = begin + threadIdx.x;
    const int mine = i < chunks ? scratch.chunks[i] : 0;
    int all = 0;
    const int place = sum_before(mine, all);
    if (i < chunks) {
      constexpr std::int64_t kChunksOfAPage = SparseMessage::kPage / kChunk;
      scratch.chunks[i] = before + place;
      if (i % kChunksOfAPage == 0) a.message[i / kChunksOfAPage] = sent(a, before + place);
    }
    before += all;
  }
  const SparseMessage shape{.count = a.numbers.count, .capacity = a.capacity};
  if (threadIdx.x == 0) a.message[shape.pages()] = sent(a, before);
  std::uint32_t* words = a.message + shape.heads();
  for (std::int64_t i = before + static_cast<std::int64_t>(threadIdx.x); i < a.capacity; i += blockDim.x)
    words[i] = 0;
}

__global__ void __launch_bounds__(kBlockThreads) select_kernel(SparseSelection a, Scratch scratch) {
  const Maker maker{a.numbers};
  const MakeSparseNumber make = MakeSparseNumber::from(a.numbers);
  const std::uint32_t threshold = *a.threshold;
  const std::int64_t first = std::int64_t{blockIdx.x} * kChunk + std::int64_t{threadIdx.x} * kEach;
  SparseNumber<float> numbers[kEach];
  int chosen = 0;
  for (int k = 0; k < kEach; ++k) {
    if (first + k >= a.numbers.count) continue;
    numbers[k] = maker.at(make, first + k);
    if (sparse_size(numbers[k].value) >= threshold) ++chosen;
  }
  int all = 0;
  std::int64_t place = scratch.chunks[blockIdx.x] + sum_before(chosen, all);
  std::uint32_t* words = a.message + SparseMessage{.count = a.numbers.count, .capacity = a.capacity}.heads();
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t i = first + k;
    if (i >= a.numbers.count) continue;
    SparseNumber<float> left = numbers[k];
    if (sparse_size(left.value) >= threshold && place < a.capacity) {
      const SparseWord word = SparseWord::of(left.value, i);
      const bool spoiled = place == 0 && *scratch.not_finite != 0;
      words[place] = spoiled ? word.spoiled().bits : word.bits;
      left = {left.value - word.value(), left.velocity * a.kept_velocity};
      ++place;
    }
    if (a.next_residual != nullptr) a.next_residual[i] = make.kept(left.value);
    if (a.next_velocity != nullptr) a.next_velocity[i] = left.velocity;
  }
}

__global__ void __launch_bounds__(kMostBlockThreads) clear_sums_kernel(std::int64_t count, float* sums) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) sums[i] = 0;
}

// Adds one rank's message, which names each place at most once, so that no atomic additions are needed.
__global__ void __launch_bounds__(kMostBlockThreads) sum_kernel(SparseSum a, const std::uint32_t* heads) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= heads[a.shape.pages()]) return;
  std::int64_t page = 0, end = a.shape.pages();  // heads[page] <= i < heads[end]
  while (page + 1 < end) {
    const std::int64_t middle = (page + end) / 2;
    (heads[middle] <= i ? page : end) = middle;
  }
  const float scale = a.loss_scale == nullptr ? 1.0f : *a.loss_scale;
  const SparseWord word{heads[a.shape.heads() + i]};
  a.sums[page * SparseMessage::kPage + word.place_in_page()] += scale * word.value();
}

LaunchShape cover(std::int64_t count) {
  const int threads = block_threads();
  return {.grid = dim3(static_cast<unsigned>(ceil_div(count, threads))),
          .block = dim3(static_cast<unsigned>(threads))};
}

}  // namespace

void cuda_sparse_clip(Stream& stream, const SparseClip& a) {
  static_assert(sparse_scratch_bytes(0) >= kSquareSums * sizeof(double));
  auto* sums = static_cast<double*>(a.scratch);
  cuda_sum_squares(stream, {.count = a.count, .values = a.gradient, .sums = sums});
  launch(clip_kernel, {.grid = dim3(1), .block = dim3(kWarpThreads)}, stream, a,
         static_cast<const double*>(sums));
}

void cuda_sparse_threshold(Stream& stream, const SparseThreshold& a) {
  const Scratch scratch = Scratch::at(a.scratch);
  const SparseSample sample = SparseSample::of(a.numbers.count, a.kept);
  const std::int64_t blocks =
      std::min(enough_blocks(stream.device()), ceil_div(sample.stretches() * SparseSample::kStretch, kChunk));
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kBlockThreads)};
  const LaunchShape one{.grid = dim3(1), .block = dim3(1)};
  const auto count = [&](const SparseStage* stage) {
    launch(clear_kernel, cover(kSparseBins), stream, std::int64_t{kSparseBins}, scratch.bins);
    launch(bins_kernel, shape, stream, Maker{a.numbers}, sample, stage, scratch.bins);
  };
  count(nullptr);
  launch(stage_kernel, one, stream, sample, a.kept, scratch);
  count(scratch.stage);
  launch(threshold_kernel, one, stream, sample, a.kept, scratch, a.threshold);
}

void cuda_sparse_select(Stream& stream, const SparseSelection& a) {
  const Scratch scratch = Scratch::at(a.scratch);
  const std::int64_t chunks = ceil_div(a.numbers.count, kChunk);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(chunks)), .block = dim3(kBlockThreads)};
  launch(clear_kernel, {.grid = dim3(1), .block = dim3(1)}, stream, std::int64_t{1},
         reinterpret_cast<std::uint32_t*>(scratch.not_finite));
  launch(count_kernel, shape, stream, a, scratch);
  launch(places_kernel, {.grid = dim3(1), .block = dim3(kBlockThreads)}, stream, a, scratch, chunks);
  launch(select_kernel, shape, stream, a, scratch);
}

void cuda_sparse_sum(Stream& stream, const SparseSum& a) {
  launch(clear_sums_kernel, cover(a.shape.count), stream, a.shape.count, a.sums);
  for (std::int32_t rank = 0; rank < a.ranks; ++rank)
    launch(sum_kernel, cover(a.shape.capacity), stream, a, a.messages + rank * a.stride);
}

}  // namespace lockstep
