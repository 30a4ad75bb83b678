// SPDX-License-Identifier: Apache-2.0
//
// The emulated runtime keeps exactly the order that CUDA guarantees, and refuses the calls that CUDA refuses.
// In these tests an operation that no one waits for may be delayed by a second (main()).
#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include <cuda_runtime.h>

#include "tests/cuda_emulator/runtime_fixture.h"

namespace lockstep::emulator {
namespace {

__global__ void empty_kernel() {}

TEST_F(Runtime, ARefusedLaunchIsTheLastError) {
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(1025);
  EXPECT_EQ(cudaLaunchKernelEx(&config, empty_kernel), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Runtime, AStreamKeepsItsOrder) {
  const Number number(0);
  for (int i = 1; i < 6; ++i) add(first(), number, i);
  ASSERT_OK(cudaStreamSynchronize(first()));
  EXPECT_EQ(number.get(), 12345);
}

TEST_F(Runtime, AnEventOrdersTwoStreams) {
  for (int i = 0; i < 20; ++i) {
    const Number number(0);
    add(first(), number, 1);
    ASSERT_OK(cudaEventRecord(event(), first()));
    ASSERT_OK(cudaStreamWaitEvent(second(), event()));
    add(second(), number, 2);
    ASSERT_OK(cudaStreamSynchronize(second()));
    EXPECT_EQ(number.get(), 12);
  }
}

// Without an event, work of the second stream may run first, although it was enqueued last.
TEST_F(Runtime, UnorderedWorkRunsInAnyOrder) {
  std::set<int> seen;
  for (int i = 0; i < 50; ++i) {
    const Number number(0);
    add_unordered(first(), number, 1);
    ASSERT_OK(cudaStreamSynchronize(second()));
    add_unordered(second(), number, 2);
    ASSERT_OK(cudaStreamSynchronize(second()));
    ASSERT_OK(cudaStreamSynchronize(first()));
    seen.insert(number.get());
  }
  EXPECT_EQ(seen, (std::set<int>{12, 21}));
}

TEST_F(Runtime, AWaitCoversOnlyEarlierRecords) {
  std::atomic<bool> may_end{false};
  ASSERT_OK(cudaEventRecord(event(), first()));
  ASSERT_OK(cudaStreamWaitEvent(second(), event()));
  ASSERT_OK(enqueue(first(), "waits", [&] {
    while (!may_end) std::this_thread::yield();
  }));
  ASSERT_OK(cudaEventRecord(event(), first()));
  ASSERT_OK(cudaStreamSynchronize(second()));  // the second record has not happened
  EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(event()));
  may_end = true;
  ASSERT_OK(cudaEventSynchronize(event()));
  EXPECT_CUDA(cudaSuccess, cudaEventQuery(event()));
}

TEST_F(Runtime, PageableMemoryIsReadAtTheCallAndPinnedMemoryWhenTheCopyRuns) {
  int pageable = 1;
  int* pinned = nullptr;
  ASSERT_OK(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(int), cudaHostAllocPortable));
  *pinned = 1;
  const Number from_pageable(0);
  const Number from_pinned(0);
  std::atomic<bool> changed{false};
  ASSERT_OK(enqueue(first(), "waits", [&] {
    while (!changed) std::this_thread::yield();
  }));
  ASSERT_OK(cudaMemcpyAsync(from_pageable.data(), &pageable, sizeof(int), cudaMemcpyDefault, first()));
  ASSERT_OK(cudaMemcpyAsync(from_pinned.data(), pinned, sizeof(int), cudaMemcpyDefault, first()));
  pageable = 2;
  *pinned = 2;
  changed = true;
  ASSERT_OK(cudaStreamSynchronize(first()));
  EXPECT_EQ(from_pageable.get(), 1);
  EXPECT_EQ(from_pinned.get(), 2);
  ASSERT_OK(cudaFreeHost(pinned));
}

// Returns 0 if a copy reads a pageable number at the time of the copy, not at the time of the call.
int read_late() {
  static int pageable = 1;
  static int back = 0;
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const Number number(0);
  std::atomic<bool> changed{false};
  enqueue(stream, "waits", [&] {
    while (!changed) std::this_thread::yield();
  });
  cudaMemcpyAsync(number.data(), &pageable, sizeof(int), cudaMemcpyDefault, stream);
  pageable = 2;
  cudaMemcpyAsync(&back, number.data(), sizeof(int), cudaMemcpyDefault, stream);
  const bool waited = back != 0;
  changed = true;
  cudaStreamSynchronize(stream);
  return back == 2 && !waited ? 0 : 1;
}

TEST(RuntimeDeathTest, PageableMemoryMayBeReadWhenTheCopyRuns) {
  GTEST_FLAG_SET(death_test_style,
                 "threadsafe");  // a new process, because the machine's settings are read once
  setenv("LOCKSTEP_EMULATED_PAGEABLE", "late", 1);
  EXPECT_EXIT(std::_Exit(read_late()), testing::ExitedWithCode(0), "");
  unsetenv("LOCKSTEP_EMULATED_PAGEABLE");
}

TEST_F(Runtime, HeldBackWorkStartsWhenTheHostWaitsForIt) {
  const Number number(0), other(0);
  int pageable = 0;
  {
    const HeldBack held_back;
    add(first(), number, 1);
    ASSERT_OK(cudaEventRecord(event(), first()));
    add(first(), other, 3);
    ASSERT_OK(cudaStreamWaitEvent(second(), event()));
    add(second(), number, 2);
    ASSERT_OK(cudaMemcpyAsync(&pageable, number.data(), sizeof(int), cudaMemcpyDefault, second()));
    EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(second()));
    ASSERT_OK(cudaStreamSynchronize(second()));
    EXPECT_EQ(pageable, 12);
    EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(first()));
  }
  ASSERT_OK(cudaStreamSynchronize(first()));
  EXPECT_EQ(number.get(), 12);
  EXPECT_EQ(other.get(), 3);
}

TEST_F(Runtime, DeviceSynchronizeWaitsForDestroyedStreams) {
  const HeldBack held_back;
  cudaStream_t stream = nullptr;
  ASSERT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  static std::atomic<bool> ran{false};
  ASSERT_OK(enqueue(stream, "work", [] { ran = true; }));
  ASSERT_OK(cudaStreamDestroy(stream));
  ASSERT_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(ran);
}

TEST_F(Runtime, TheLegacyStreamIsNotDestroyedAndEndsNoCapture) {
  cudaGraph_t graph = nullptr;
  for (const cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy}) {
    EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
    EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  }
}

TEST_F(Runtime, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  cudaStream_t blocking = nullptr;
  ASSERT_OK(cudaStreamCreate(&blocking));
  for (int i = 0; i < 10; ++i) {
    const Number number(0);
    add(blocking, number, 1);
    add(nullptr, number, 2);
    add(blocking, number, 3);
    ASSERT_OK(cudaStreamSynchronize(blocking));
    EXPECT_EQ(number.get(), 123);
  }
  ASSERT_OK(cudaStreamDestroy(blocking));
}

TEST_F(Runtime, CopiesAreCheckedAgainstTheirMemory) {
  const Number number(0);
  char host[8] = {};
  EXPECT_CUDA(cudaErrorInvalidValue, cudaMemcpyAsync(host, number.data(), 8, cudaMemcpyDefault, first()));
  EXPECT_CUDA(cudaErrorInvalidMemcpyDirection,
              cudaMemcpyAsync(host, number.data(), 4, cudaMemcpyHostToDevice, first()));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaMemsetAsync(host, 0, 8, first()));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFree(host));
}

TEST_F(Runtime, MemoryIsLimitedAndCounted) {
  std::size_t before = 0;
  std::size_t total = 0;
  ASSERT_OK(cudaMemGetInfo(&before, &total));
  EXPECT_EQ(total, std::size_t{1} << 20);
  void* data = nullptr;
  ASSERT_OK(cudaMalloc(&data, before));
  void* more = nullptr;
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&more, 1));
  std::size_t left = 1;
  ASSERT_OK(cudaMemGetInfo(&left, &total));
  EXPECT_EQ(left, 0u);
  ASSERT_OK(cudaFree(data));
  ASSERT_OK(cudaMemGetInfo(&left, &total));
  EXPECT_EQ(left, before);
}

// Returns 0 if a context uses the configured amount of its device's memory.
int take_context_memory() {
  std::size_t left = 0, total = 0;
  if (cudaSetDevice(1) != cudaSuccess || cudaMemGetInfo(&left, &total) != cudaSuccess) return 1;
  return total == std::size_t{8} << 20 && total - left == std::size_t{3} << 20 ? 0 : 2;
}

TEST(RuntimeDeathTest, ContextTakesMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("TEST_MEMORY", "8MiB", 1);
  setenv("LOCKSTEP_EMULATED_CONTEXT", "3MiB", 1);
  EXPECT_EXIT(std::_Exit(take_context_memory()), testing::ExitedWithCode(0), "");
  setenv("LOCKSTEP_EMULATED_CONTEXT", "9MiB", 1);
  EXPECT_EXIT(std::_Exit(cudaSetDevice(1) == cudaErrorMemoryAllocation ? 0 : 1), testing::ExitedWithCode(0),
              "");
  unsetenv("LOCKSTEP_EMULATED_CONTEXT");
  unsetenv("TEST_MEMORY");
}

TEST_F(Runtime, WorkBelongsToTheCurrentDevice) {
  ASSERT_OK(cudaSetDevice(1));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, enqueue(first(), "work", [] {}));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventRecord(event(), nullptr))
      << "the event belongs to device 0";
  EXPECT_CUDA(cudaErrorInvalidDevice, cudaSetDevice(99));
}

// A thread starts with device 0, and its first call creates a context there.
TEST(Contexts, AreCreatedAtTheFirstUseOfADevice) {
  EXPECT_EQ(contexts(3), 0);
  ASSERT_OK(cudaSetDevice(3));
  EXPECT_EQ(contexts(3), 1);
  EXPECT_EQ(contexts(2), 0);
  std::size_t available = 0;
  std::size_t total = 0;
  std::thread([&] {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  }).join();
  EXPECT_EQ(contexts(0), 1);
  ASSERT_OK(cudaSetDevice(0));
}

TEST(DeviceFlags, AreCheckedAndKeptPerDevice) {
  ASSERT_OK(cudaSetDevice(2));
  for (const unsigned flags : {3u, 5u, 6u, 7u, 0x20u, 0x40u, 0x100u})
    EXPECT_CUDA(cudaErrorInvalidValue, cudaSetDeviceFlags(flags)) << flags;
  for (const unsigned flags : {cudaDeviceScheduleSpin | cudaDeviceMapHost, cudaDeviceScheduleYield | 0x90u}) {
    ASSERT_OK(cudaSetDeviceFlags(flags));
    unsigned found = 0;
    ASSERT_OK(cudaGetDeviceFlags(&found));
    EXPECT_EQ(found, flags | cudaDeviceMapHost);
  }
  ASSERT_OK(cudaSetDevice(0));
  unsigned found = 0;
  ASSERT_OK(cudaGetDeviceFlags(&found));
  EXPECT_EQ(found, cudaDeviceMapHost) << "another device has its own flags";
  cudaGetLastError();
}

// Waits for streams follow the flags of the device, waits for events those of the event.
TEST_F(Runtime, WaitsSpinUnlessFlagsSelectBlocking) {
  cudaEvent_t blocking = nullptr;
  ASSERT_OK(cudaEventCreateWithFlags(&blocking, cudaEventBlockingSync));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaEventCreateWithFlags(&events_.emplace_back(), 8));
  events_.pop_back();
  const auto spins = [](auto wait) {
    const std::uint64_t before = spinning_waits();
    EXPECT_EQ(wait(), cudaSuccess);
    return spinning_waits() - before;
  };
  EXPECT_EQ(spins([&] { return cudaEventSynchronize(blocking); }), 0u);
  EXPECT_EQ(spins([&] { return cudaEventSynchronize(event()); }), 1u);
  EXPECT_EQ(spins([&] { return cudaStreamSynchronize(first()); }), 1u);
  EXPECT_EQ(spins([&] { return cudaDeviceSynchronize(); }), 1u);
  ASSERT_OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  EXPECT_EQ(spins([&] { return cudaStreamSynchronize(first()); }), 0u);
  EXPECT_EQ(spins([&] { return cudaDeviceSynchronize(); }), 0u);
  EXPECT_EQ(spins([&] { return cudaEventSynchronize(event()); }), 1u);
  ASSERT_OK(cudaSetDeviceFlags(cudaDeviceScheduleAuto));
  ASSERT_OK(cudaEventDestroy(blocking));
}

TEST_F(Runtime, HostFunctionsMayNotCallCuda) {
  cudaError_t status = cudaSuccess;
  ASSERT_OK(cudaLaunchHostFunc(
      first(),
      [](void* found) {
        void* data = nullptr;
        *static_cast<cudaError_t*>(found) = cudaMalloc(&data, 1);
      },
      &status));
  ASSERT_OK(cudaStreamSynchronize(first()));
  EXPECT_EQ(status, cudaErrorNotPermitted);
}

TEST_F(Runtime, ElapsedTimeNeedsCompletedTimedEvents) {
  cudaEvent_t untimed = nullptr;
  ASSERT_OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  float milliseconds = -1;
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, event(0), event(1)));
  ASSERT_OK(cudaEventRecord(event(0), first()));
  ASSERT_OK(enqueue(first(), "sleeps", [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }));
  ASSERT_OK(cudaEventRecord(event(1), first()));
  EXPECT_CUDA(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, event(0), event(1)));
  ASSERT_OK(cudaEventSynchronize(event(1)));
  ASSERT_OK(cudaEventElapsedTime(&milliseconds, event(0), event(1)));
  EXPECT_GE(milliseconds, 3);
  ASSERT_OK(cudaEventRecord(untimed, first()));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, event(0), untimed));
  ASSERT_OK(cudaEventDestroy(untimed));
}

// Runs last, because the device's context does not recover.
TEST(Zzz, AFaultOfAContextIsPermanent) {
  ASSERT_OK(cudaSetDevice(4));
  cudaStream_t stream = nullptr;
  ASSERT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  bool ran = false;
  {
    const HeldBack
        held_back;  // without it the kernel may fail before the next call, which would then report it
    ASSERT_OK(enqueue(stream, "a kernel", [] { throw DeviceFault("meant"); }));
    ASSERT_OK(enqueue(stream, "after it", [&] { ran = true; }));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure) << "reading the error must not clear it";
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorLaunchFailure);
  ASSERT_OK(cudaSetDevice(0));
  EXPECT_EQ(cudaMalloc(&data, 1), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

}  // namespace
}  // namespace lockstep::emulator

int main(int argc, char** argv) {
  setenv("LOCKSTEP_EMULATED_GPUS", "5", 1);
  const char* memory = std::getenv("TEST_MEMORY");
  setenv("LOCKSTEP_EMULATED_MEMORY", memory == nullptr ? "1MiB" : memory, 1);
  setenv("LOCKSTEP_EMULATED_DELAY", "1s", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
