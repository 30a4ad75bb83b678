// SPDX-License-Identifier: Apache-2.0
//
// Under ThreadSanitizer only: it must report exactly the accesses that CUDA does not order. Each case runs in
// a separate process, which ends with exit code 66 if a race was reported.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/emulator.h"

namespace lockstep {
namespace {

constexpr unsigned kAll = 0xffffffffu;

template <bool kBarrier>
__global__ void reverse_kernel(const int* from, int* to) {
  __shared__ int shared[64];
  shared[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
  if (kBarrier) __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
// The second barrier separates the reads of a round from the writes of the next one.
template <bool kSecond>
__global__ void rounds_kernel(int* to) {
  __shared__ int shared[64];
  for (int round = 0; round < 3; ++round) {
    shared[threadIdx.x] = round;
    __syncthreads();
    to[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
    if (kSecond) __syncthreads();
  }
}
template <bool kOwnPlace>
__global__ void store_kernel(int* to) {
  to[kOwnPlace ? blockIdx.x * blockDim.x + threadIdx.x : threadIdx.x] = 1;
}
__global__ void one_element_kernel(int* to) { *to = static_cast<int>(threadIdx.x); }
template <bool kBarrier>
__global__ void warp_kernel(int* to) {
  __shared__ int shared[32];
  shared[threadIdx.x] = 1;
  const int other = __shfl_xor_sync(kAll, 1, 1);  // no memory barrier
  if (kBarrier) __syncwarp();
  to[threadIdx.x] = other + shared[threadIdx.x ^ 1];
}
__global__ void count_kernel(int* count) { atomicAdd(count, 1); }
__global__ void plain_count_kernel(int* count) {
  if (threadIdx.x == 0) ++*count;
  if (threadIdx.x == 1) atomicAdd(count, 1);
}
// The last block adds the partial results of all blocks.
template <bool kFence>
__global__ void last_block_kernel(int* partial, unsigned* done, int* sum) {
  partial[blockIdx.x] = static_cast<int>(blockIdx.x);
  if (kFence) __threadfence();
  if (atomicAdd(done, 1u) != gridDim.x - 1) return;
  if (kFence) __threadfence();
  *sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) *sum += partial[i];
}

constexpr unsigned kBlocks = 5;

template <typename... Parameters, typename... Arguments>
void run(unsigned blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  emulator::run({.grid = dim3(blocks), .block = dim3(threads)}, [&] { kernel(arguments...); });
}

class Races : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <typename Function>
  static void expect_race(Function function) {
    EXPECT_EXIT(end_after(function), testing::ExitedWithCode(66), "data race");
  }
  template <typename Function>
  static void expect_none(Function function) {
    EXPECT_EXIT(end_after(function), testing::ExitedWithCode(0), "");
  }

  int from_[kBlocks * 64] = {};
  int to_[kBlocks * 64] = {};
  unsigned done_ = 0;

 private:
  template <typename Function>
  static void end_after(Function function) {
    function();
    std::exit(0);
  }
};

TEST_F(Races, ThreadsOfABlockNeedABarrier) {
  expect_race([&] { run(1, 64, reverse_kernel<false>, from_, to_); });
  expect_none([&] { run(kBlocks, 64, reverse_kernel<true>, from_, to_); });
  expect_race([&] { run(1, 64, rounds_kernel<false>, to_); });
  expect_none([&] { run(1, 64, rounds_kernel<true>, to_); });
}

TEST_F(Races, ThreadsMustNotWriteTheSameElement) {
  expect_race([&] { run(1, 64, one_element_kernel, to_); });
  expect_race([&] { run(2, 64, store_kernel<false>, to_); });
  expect_none([&] { run(kBlocks, 64, store_kernel<true>, to_); });
}

TEST_F(Races, AShuffleIsNoMemoryBarrierBetweenLanes) {
  expect_race([&] { run(1, 32, warp_kernel<false>, to_); });
  expect_none([&] { run(1, 32, warp_kernel<true>, to_); });
}

TEST_F(Races, AtomicOperationsDoNotRace) {
  expect_none([&] { run(kBlocks, 64, count_kernel, to_); });
  expect_race([&] { run(1, 64, plain_count_kernel, to_); });
}

TEST_F(Races, AFenceOrdersMemoryAcrossAtomicOperations) {
  expect_race([&] { run(kBlocks, 1, last_block_kernel<false>, to_, &done_, from_); });
  expect_none([&] {
    run(kBlocks, 1, last_block_kernel<true>, to_, &done_, from_);
    if (from_[0] != 10) std::exit(1);
  });
}

TEST_F(Races, SuccessiveKernelsDoNotRace) {
  expect_none([&] {
    std::fill(from_, from_ + 64, 7);
    for (int launch = 0; launch < 3; ++launch) run(2, 32, store_kernel<true>, from_);
    run(2, 32, store_kernel<true>, to_);
    run(1, 64, reverse_kernel<true>, from_, to_);
    if (std::count(to_, to_ + 64, 1) != 64) std::exit(1);
  });
}

TEST_F(Races, KernelsOfTwoHostThreadsRace) {
  expect_race([&] {
    std::thread other([&] { run(1, 64, store_kernel<true>, to_); });
    run(1, 64, store_kernel<true>, to_);
    other.join();
  });
  expect_none([&] {
    std::thread([&] { run(1, 64, store_kernel<true>, to_); }).join();
    run(1, 64, store_kernel<true>, to_);
  });
}

TEST_F(Races, AnAbortedKernelDoesNotRaceWithTheNext) {
  expect_none([&] {
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        emulator::run({.grid = dim3(1), .block = dim3(64)}, [&] {
          if (threadIdx.x != 7) __syncthreads();
        });
        std::exit(1);
      } catch (const emulator::KernelError&) {
      }
      run(kBlocks, 64, reverse_kernel<true>, from_, to_);
    }
  });
}

}  // namespace
}  // namespace lockstep
