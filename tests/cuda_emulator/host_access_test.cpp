// SPDX-License-Identifier: Apache-2.0
//
// Host threads cannot access device memory; device work can. Each case runs in a separate process, because
// the setting is read once.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda_emulator/runtime_fixture.h"

namespace lockstep::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int read_on_host(const Number& number) { return *static_cast<volatile int*>(number.data()); }

// The parameter: LOCKSTEP_EMULATED_HOST_ACCESS.
class HostAccessDeathTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "memory is not protected under sanitizers";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("LOCKSTEP_EMULATED_HOST_ACCESS", GetParam().c_str(), 1);
  }
  void TearDown() override { unsetenv("LOCKSTEP_EMULATED_HOST_ACCESS"); }
};

// The message of the handler of SIGSEGV.
constexpr const char* kMessage = "host code touches device memory";

TEST_P(HostAccessDeathTest, HostThreadEndsTheProcess) {
  EXPECT_EXIT(
      {
        const Number number(7);
        read_on_host(number);
      },
      testing::KilledBySignal(SIGSEGV), kMessage);
  EXPECT_EXIT(
      {
        const Number number(7);
        std::thread([&] { std::memset(number.data(), 0, sizeof(int)); }).join();
      },
      testing::KilledBySignal(SIGSEGV), kMessage);
}

TEST_P(HostAccessDeathTest, HostThreadEndsTheProcessAfterDeviceWork) {
  EXPECT_EXIT(
      {
        const Number number(7);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        add(stream, number, 1);
        cudaStreamSynchronize(stream);
        read_on_host(number);
      },
      testing::KilledBySignal(SIGSEGV), kMessage);
}

TEST_P(HostAccessDeathTest, HostFunctionOfAStreamEndsTheProcess) {
  EXPECT_EXIT(
      {
        const Number number(7);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaLaunchHostFunc(
            stream, [](void* of) { read_on_host(*static_cast<const Number*>(of)); },
            const_cast<Number*>(&number));
        cudaStreamSynchronize(stream);
      },
      testing::KilledBySignal(SIGSEGV), kMessage);
}

// Returns 0 if two streams and a graph with a host function between its nodes compute the right results.
int compute() {
  const Number number(0), other(0);
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  int* pinned = nullptr;
  cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(int), cudaHostAllocPortable);
  *pinned = 0;
  cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal);
  add(streams[0], number, 1);
  cudaLaunchHostFunc(
      streams[0], [](void* count) { ++*static_cast<int*>(count); }, pinned);
  add(streams[0], number, 2);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamEndCapture(streams[0], &graph);
  if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) return 2;
  for (int i = 0; i < 4; ++i) {
    cudaGraphLaunch(executable, streams[0]);
    for (int j = 0; j < 50; ++j) {
      enqueue(streams[1], "set", [data = other.data(), j] { *data = j; });
      cudaStreamSynchronize(streams[j % 2]);
    }
  }
  cudaDeviceSynchronize();
  std::thread([&] { *pinned += number.get(); }).join();
  return *pinned == 12121212 + 4 && other.get() == 49 ? 0 : 1;
}

TEST_P(HostAccessDeathTest, DeviceWorkHasAccess) {
  EXPECT_EXIT(std::_Exit(compute()), testing::ExitedWithCode(0), "");
}

// Like a rank that was forked from a process that has used device memory.
TEST_P(HostAccessDeathTest, ForkedProcessIsDenied) {
  EXPECT_EXIT(
      {
        const Number number(7);
        const pid_t child = fork();
        if (child == 0) read_on_host(number);
        int status = 0;
        waitpid(child, &status, 0);
        std::_Exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 1);
      },
      testing::ExitedWithCode(0), kMessage);
}

INSTANTIATE_TEST_SUITE_P(Ways, HostAccessDeathTest, testing::Values("denied", "pages"),
                         [](const auto& each) { return each.param; });

TEST(HostAccessAllowedDeathTest, HostThreadReadsDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("LOCKSTEP_EMULATED_HOST_ACCESS", "allowed", 1);
  EXPECT_EXIT(
      {
        const Number number(7);
        std::_Exit(read_on_host(number));
      },
      testing::ExitedWithCode(7), "");
  setenv("LOCKSTEP_EMULATED_HOST_ACCESS", "perhaps", 1);
  EXPECT_EXIT(const Number number(7), testing::ExitedWithCode(78), "denied, pages or allowed");
  unsetenv("LOCKSTEP_EMULATED_HOST_ACCESS");
}

}  // namespace
}  // namespace lockstep::emulator
