// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a launch, refused launches, and concurrent kernels of several host threads.
#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/inline_runtime.h"

namespace lockstep {
namespace {

using emulator::DeviceFault;
using emulator::HeldWork;

struct Triple {
  int values[3];
};

__global__ void store_kernel(Triple from, std::int64_t factor, std::int64_t* to) {
  for (int i = 0; i < 3; ++i) to[i] = from.values[i] * factor;
}
__global__ void order_kernel(unsigned* order, unsigned* next) {
  order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}
__global__ void broken_kernel() {
  if (threadIdx.x == 0) return;
  __syncthreads();
}

cudaLaunchConfig_t shape(unsigned grid, unsigned block) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(block);
  return config;
}

TEST(Launch, ArgumentsAreCopiedAndConvertedAtTheCall) {
  std::array<std::int64_t, 3> to = {};
  Triple from{{1, 2, 3}};
  short factor = -5;
  HeldWork held;
  const cudaLaunchConfig_t config = shape(1, 1);
  ASSERT_EQ(cudaLaunchKernelEx(&config, store_kernel, from, factor, to.data()), cudaSuccess);
  from = {};
  factor = 0;
  EXPECT_EQ(to, (std::array<std::int64_t, 3>{}));
  for (const emulator::Work& work : held.take()) {
    work();
    work();  // a graph runs its work repeatedly
  }
  EXPECT_EQ(to, (std::array<std::int64_t, 3>{-5, -10, -15}));
}

TEST(Launch, InvalidShapesAreRefusedAtTheCall) {
  HeldWork held;
  for (const auto& [grid, block] : {std::pair(0u, 32u), {1u, 0u}, {1u, 1025u}, {0x80000000u, 1u}}) {
    const cudaLaunchConfig_t config = shape(grid, block);
    EXPECT_EQ(cudaLaunchKernelEx(&config, broken_kernel), cudaErrorInvalidConfiguration);
  }
  EXPECT_TRUE(held.take().empty());
}

TEST(Launch, UnemulatedAttributesAreRefused) {
  HeldWork held;
  const auto status = [&](cudaLaunchAttributeID id, auto set) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[1].id = id;
    set(attributes[1].val);
    cudaLaunchConfig_t config = shape(1, 1);
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, broken_kernel);
  };
  using Value = cudaLaunchAttributeValue;
  EXPECT_EQ(status(cudaLaunchAttributePriority, [](Value& v) { v.priority = -1; }), cudaSuccess);
  const auto cluster_of = [](unsigned x) { return [x](Value& v) { v.clusterDim = {x, 1, 1}; }; };
  EXPECT_EQ(status(cudaLaunchAttributeClusterDimension, cluster_of(1)), cudaSuccess);
  EXPECT_EQ(status(cudaLaunchAttributeClusterDimension, cluster_of(2)), cudaErrorNotSupported);
  const auto overlap = [](Value& v) { v.programmaticStreamSerializationAllowed = 1; };
  EXPECT_EQ(status(cudaLaunchAttributeProgrammaticStreamSerialization, overlap), cudaErrorNotSupported);
  EXPECT_EQ(status(cudaLaunchAttributeMemSyncDomain, [](Value&) {}), cudaErrorNotSupported);
  EXPECT_EQ(held.take().size(), 2u);
}

TEST(Launch, AKernelsErrorEndsTheDeviceAndNamesTheKernel) {
  const cudaLaunchConfig_t config = shape(2, 32);
  std::string said;
  try {
    static_cast<void>(cudaLaunchKernelEx(&config, broken_kernel));
  } catch (const DeviceFault& fault) {
    said = fault.what();
  }
  for (const char* part : {"lockstep::(anonymous namespace)::broken_kernel", "block (0, 0, 0)"})
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  const char* name = nullptr;
  ASSERT_EQ(cudaFuncGetName(&name, reinterpret_cast<const void*>(&store_kernel)), cudaSuccess);
  EXPECT_STREQ(name, "lockstep::(anonymous namespace)::store_kernel");
}

TEST(Launch, ASeedGivesEveryLaunchADifferentOrder) {
  const auto order = [] {
    constexpr unsigned kThreads = 7 * 70;
    std::vector<unsigned> seen(kThreads, kThreads);
    unsigned next = 0;
    const cudaLaunchConfig_t config = shape(7, 70);
    EXPECT_EQ(cudaLaunchKernelEx(&config, order_kernel, seen.data(), &next), cudaSuccess);
    std::vector<unsigned> all = seen, expected(kThreads);
    std::sort(all.begin(), all.end());
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_EQ(all, expected);
    return seen;
  };
  const auto both_orders = [&](std::uint64_t seed) {
    emulator::set_seed(seed);
    std::vector<std::vector<unsigned>> orders;
    // The first and the second launch of a new host thread.
    std::thread([&] { orders = {order(), order()}; }).join();
    emulator::set_seed(0);
    return orders;
  };
  const auto first = both_orders(1), again = both_orders(1), other = both_orders(2);
  EXPECT_EQ(first, again);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[0], other[0]);
}

// Sums through shared memory and barriers, with every index that a kernel can read.
__global__ void busy_kernel(int rounds, unsigned* sums) {
  __shared__ unsigned shared[96];
  for (int round = 0; round < rounds; ++round) {
    shared[threadIdx.x] = blockIdx.x * gridDim.x + threadIdx.x + blockDim.x;
    __syncthreads();
    unsigned sum = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += shared[i];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    __syncthreads();
  }
}

TEST(Launch, KernelsOfSeveralHostThreadsRunAtOnce) {
  const auto work = [](unsigned grid, unsigned block) {
    const cudaLaunchConfig_t config = shape(grid, block);
    for (int launch = 0; launch < 20; ++launch) {
      std::vector<unsigned> sums(grid);
      ASSERT_EQ(cudaLaunchKernelEx(&config, busy_kernel, 3, sums.data()), cudaSuccess);
      for (unsigned i = 0; i < grid; ++i) {
        ASSERT_EQ(sums[i], 2 * (block * (i * grid + block) + block * (block - 1) / 2));
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, 5 + i, i % 2 == 0 ? 64u : 96u);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
