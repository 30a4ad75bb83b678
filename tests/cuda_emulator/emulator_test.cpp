// SPDX-License-Identifier: Apache-2.0
//
// The emulator itself: it computes the results of a GPU and detects mistakes in kernels.
#include "tests/cuda_emulator/emulator.h"

#include <numeric>
#include <regex>

#include <gtest/gtest.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/message_of.h"

namespace lockstep {

// Dynamic shared memory is a variable of this namespace, so its kernels are not in an unnamed one.
template <bool kBarrier>
__global__ void reverse_kernel(const int* from, int* to) {
  extern __shared__ uint4 dynamic_shared[];
  int* shared = reinterpret_cast<int*>(dynamic_shared);
  shared[threadIdx.x] = from[threadIdx.x];
  if (kBarrier) __syncthreads();
  to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void shared_overrun_kernel() {
  extern __shared__ uint4 dynamic_shared[];
  reinterpret_cast<int*>(dynamic_shared)[threadIdx.x] = 1;
}

namespace {

constexpr unsigned kAll = 0xffffffffu;

class Emulator : public testing::TestWithParam<emulator::Order> {
 protected:
  void SetUp() override { emulator::set_order(GetParam()); }
  void TearDown() override { emulator::set_order(emulator::Order::ascending); }

  template <typename... Parameters, typename... Arguments>
  void start(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments... arguments) {
    launch(kernel, {.grid = grid, .block = block}, stream_, arguments...);
  }
  // The error that the launch throws.
  template <typename Function>
  static std::string error_of(Function function) {
    try {
      function();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  }

  Stream stream_{Device{}, StreamUse::compute};
};

INSTANTIATE_TEST_SUITE_P(Orders, Emulator,
                         testing::Values(emulator::Order::ascending, emulator::Order::descending),
                         [](const auto& test) {
                           return test.param == emulator::Order::ascending ? "ascending" : "descending";
                         });

__global__ void number_kernel(int* numbers) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned place = block * blockDim.x * blockDim.y * blockDim.z + thread;
  numbers[place] = static_cast<int>(place);
}

TEST_P(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  const DeviceMemory numbers(std::vector<int>(2 * 3 * 4 * 5 * 6 * 7, -1));
  start(number_kernel, dim3(2, 3, 4), dim3(5, 6, 7), numbers.as<int>());
  std::vector<int> expected(2 * 3 * 4 * 5 * 6 * 7);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(numbers.items<int>(), expected);
}

// sums[block] = sum of the block's values, by shuffles of the given width.
template <int kWidth>
__global__ void sum_kernel(const int* values, int* sums) {
  __shared__ int partial[32];
  int value = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_down_sync(kAll, value, distance, kWidth);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += partial[warp];
  sums[blockIdx.x] = sum;
}

std::vector<int> squares(int count) {
  std::vector<int> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = i * i;
  return values;
}

TEST_P(Emulator, ShufflesBarriersAndSharedMemoryComputeASum) {
  const std::vector<int> values = squares(3 * 128);
  const DeviceMemory memory(values), sums(3 * sizeof(int));
  start(sum_kernel<32>, dim3(3), dim3(128), memory.as<const int>(), sums.as<int>());
  for (int block = 0; block < 3; ++block) {
    const auto begin = values.begin() + block * 128;
    EXPECT_EQ(sums.as<int>()[block], std::accumulate(begin, begin + 128, 0));
  }
}

TEST_P(Emulator, AWrongShuffleWidthGivesAWrongSum) {
  const std::vector<int> values = squares(128);
  const DeviceMemory memory(values), sums(sizeof(int));
  start(sum_kernel<16>, dim3(1), dim3(128), memory.as<const int>(), sums.as<int>());
  EXPECT_NE(sums.as<int>()[0], std::accumulate(values.begin(), values.end(), 0));
}

__global__ void lanes_kernel(int* results, unsigned* votes) {
  const int lane = static_cast<int>(threadIdx.x);
  int* mine = results + 4 * lane;
  mine[0] = __shfl_sync(kAll, lane, 5, 8);
  mine[1] = __shfl_xor_sync(kAll, lane, 3);
  mine[2] = __shfl_up_sync(kAll, lane, 2, 16);
  mine[3] = __shfl_down_sync(kAll, lane, 2, 16);
  votes[lane] = __ballot_sync(kAll, lane % 3 == 0);
  if (lane >= 8) return;
  votes[lane] &= __any_sync(0xffu, lane == 7) != 0 && __all_sync(0xffu, lane < 8) != 0 ? kAll : 0u;
}

TEST_P(Emulator, ShufflesFollowTheDefinitionOfCuda) {
  const DeviceMemory results(32 * 4 * sizeof(int)), votes(32 * sizeof(unsigned));
  start(lanes_kernel, dim3(1), dim3(32), results.as<int>(), votes.as<unsigned>());
  for (int lane = 0; lane < 32; ++lane) {
    const int* mine = results.as<int>() + 4 * lane;
    EXPECT_EQ(mine[0], lane / 8 * 8 + 5);
    EXPECT_EQ(mine[1], lane ^ 3);
    EXPECT_EQ(mine[2], lane % 16 < 2 ? lane : lane - 2);
    EXPECT_EQ(mine[3], lane % 16 > 13 ? lane : lane + 2);
    EXPECT_EQ(votes.as<unsigned>()[lane], 0x49249249u);
  }
}

__global__ void block_sum_kernel(const double* values, double* sums) {
  const double first = block_sum(values[threadIdx.x]);
  sums[threadIdx.x] = first + block_sum(2 * values[threadIdx.x]);
}

TEST_P(Emulator, BlockSumsReachEveryThread) {
  std::vector<double> values(96);
  std::iota(values.begin(), values.end(), 1.0);
  const DeviceMemory memory(values), sums(96 * sizeof(double));
  start(block_sum_kernel, dim3(1), dim3(96), memory.as<const double>(), sums.as<double>());
  EXPECT_EQ(sums.items<double>(), std::vector<double>(96, 3 * 96 * 97 / 2));
}

__global__ void count_kernel(int* count, int* flags) {
  atomicAdd(count, 1);
  atomicOr(flags, 1 << threadIdx.x);
  atomicMax(count + 1, static_cast<int>(threadIdx.x));
}

TEST_P(Emulator, AtomicsSeeEveryThread) {
  const DeviceMemory count(std::vector<int>{0, 0}), flags(std::vector<int>{0});
  start(count_kernel, dim3(5), dim3(8), count.as<int>(), flags.as<int>());
  EXPECT_EQ(count.items<int>(), (std::vector<int>{40, 7}));
  EXPECT_EQ(flags.as<int>()[0], 255);
}

// Negative controls: each kernel contains one deliberate mistake.

TEST_P(Emulator, AMissingBarrierGivesWrongResults) {
  const std::vector<int> values = squares(64);
  const std::vector<int> expected(values.rbegin(), values.rend());
  const DeviceMemory memory(values), result(64 * sizeof(int));
  const auto run = [&](auto kernel) {
    launch(kernel, {.grid = dim3(1), .block = dim3(64), .shared_bytes = 64 * sizeof(int)}, stream_,
           memory.as<const int>(), result.as<int>());
    return result.items<int>();
  };
  EXPECT_EQ(run(reverse_kernel<true>), expected);
#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer reports this mistake: races_test.cpp
  EXPECT_NE(run(reverse_kernel<false>), expected);
#endif
}

template <int kExcess>
__global__ void copy_kernel(int count, const float* from, float* to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count + kExcess) to[i] = from[i];
}

[[maybe_unused]] void copy_with_excess(Stream& stream, DeviceMemory& to) {
  const DeviceMemory from(Values(100, 1.0f), DType::f32);
  launch(copy_kernel<1>, {.grid = dim3(2), .block = dim3(64)}, stream, 100, from.as<const float>(),
         to.as<float>());
}

TEST_P(Emulator, AnIndexOffByOneIsFound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceMemory to(100 * sizeof(float));
  start(copy_kernel<0>, dim3(2), dim3(64), 100, to.as<const float>(), to.as<float>());
  EXPECT_TRUE(to.margin_intact());
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(copy_with_excess(stream_, to), "AddressSanitizer: use-after-poison");
#else
  // The memory after the source differs from the memory after the target.
  DeviceMemory from(Values(101, 1.0f), DType::f32);
  start(copy_kernel<1>, dim3(2), dim3(64), 100, from.as<const float>(), to.as<float>());
  EXPECT_FALSE(to.margin_intact());
  to.forgive();
#endif
}

TEST_P(Emulator, WritesBeyondSharedMemoryAreFound) {
  const auto run = [&](unsigned threads) {
    launch(shared_overrun_kernel, {.grid = dim3(2), .block = dim3(threads), .shared_bytes = 32 * sizeof(int)},
           stream_);
  };
  EXPECT_NO_THROW(run(32));
#if !defined(__SANITIZE_ADDRESS__)
  expect_parts(error_of([&] { run(33); }), {"shared_overrun_kernel", ", 0, 0)", "128 bytes"});
#endif
}

__global__ void early_exit_kernel() {
  if (threadIdx.x == 3 && blockIdx.x == 1) return;
  __syncthreads();
}
__global__ void two_barriers_kernel() {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void missing_lane_kernel(int* sum) {
  if (threadIdx.x < 20) sum[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
}
__global__ void stranger_lane_kernel(int* sum) {
  if (threadIdx.x < 16) sum[threadIdx.x] = __shfl_down_sync(0xffffu, 1, 1);
}
__global__ void outsider_kernel(int* sum) { sum[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }

TEST_P(Emulator, DeadlockedThreadsAreNamed) {
  const DeviceMemory sum(32 * sizeof(int));
  expect_parts(error_of([&] { start(early_exit_kernel, dim3(3), dim3(64)); }),
               {"block (1, 0, 0)", "63 threads", "emulator_test.cpp:", "1 thread"});
  expect_parts(error_of([&] { start(two_barriers_kernel, dim3(1), dim3(32)); }),
               {"block (0, 0, 0)", "25 threads", "7 threads"});
  expect_parts(error_of([&] { start(missing_lane_kernel, dim3(1), dim3(32), sum.as<int>()); }),
               {"20 threads", "0xffffffff", "12 threads"});
  expect_parts(error_of([&] { start(missing_lane_kernel, dim3(1), dim3(20), sum.as<int>()); }),
               {"20 threads", "0xffffffff"});
  expect_parts(error_of([&] { start(stranger_lane_kernel, dim3(1), dim3(32), sum.as<int>()); }),
               {"lane 15", "lane 16"});
  // A lane from 16 to 31, and the mask without it.
  const std::string outsider = error_of([&] { start(outsider_kernel, dim3(1), dim3(32), sum.as<int>()); });
  for (const char* part : {R"(\blane (1[6-9]|2\d|3[01])\b)", R"(\b0xffff\b)"})
    EXPECT_TRUE(std::regex_search(outsider, std::regex(part))) << part << ": " << outsider;
  // The next launch succeeds.
  start(early_exit_kernel, dim3(1), dim3(64));
}

TEST_P(Emulator, InvalidLaunchShapesAreRefused) {
  const auto refused = [&](dim3 grid, dim3 block, std::size_t shared_bytes) {
    return error_of([&] {
             launch(early_exit_kernel, {.grid = grid, .block = block, .shared_bytes = shared_bytes}, stream_);
           }).find("invalid configuration") != std::string::npos;
  };
  EXPECT_FALSE(refused(dim3(1), dim3(1024), 48 << 10));
  EXPECT_TRUE(refused(dim3(1), dim3(1025), 0));
  EXPECT_TRUE(refused(dim3(0), dim3(32), 0));
  EXPECT_TRUE(refused(dim3(1, 65536), dim3(32), 0));
  EXPECT_TRUE(refused(dim3(1), dim3(32), (48 << 10) + 1));
}

}  // namespace
}  // namespace lockstep
