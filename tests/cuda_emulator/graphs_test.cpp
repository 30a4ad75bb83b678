// SPDX-License-Identifier: Apache-2.0
//
// Capture and graphs of the emulated runtime, as CUDA's documents describe them.
#include <set>
#include <thread>

#include "tests/cuda_emulator/runtime_fixture.h"

namespace lockstep::emulator {
namespace {

class Graphs : public Runtime {
 protected:
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_OK(cudaStreamBeginCapture(first(), mode));
  }
  void expect_end(cudaError_t status) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first(), &graph), status);
    EXPECT_EQ(graph != nullptr, status == cudaSuccess);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first(), &graph), cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }
  void fork() {
    ASSERT_OK(cudaEventRecord(event(0), first()));
    ASSERT_OK(cudaStreamWaitEvent(second(), event(0)));
  }
  void join() {
    ASSERT_OK(cudaEventRecord(event(1), second()));
    ASSERT_OK(cudaStreamWaitEvent(first(), event(1)));
  }
};

TEST_F(Graphs, RunOncePerLaunch) {
  const Number number(0);
  begin();
  add(first(), number, 1);
  fork();
  add(second(), number, 2);
  join();
  add(first(), number, 3);
  const cudaGraphExec_t executable = end();
  EXPECT_EQ(number.get(), 0);
  ASSERT_OK(cudaGraphLaunch(executable, first()));
  ASSERT_OK(cudaGraphLaunch(executable,
                            second()));  // runs after the first launch, although it is on another stream
  ASSERT_OK(cudaStreamSynchronize(second()));
  EXPECT_EQ(number.get(), 123123);
  ASSERT_OK(cudaGraphExecDestroy(executable));
}

TEST_F(Graphs, BranchesRunInAnyOrder) {
  const Number number(0);
  begin();
  fork();
  add_unordered(first(), number, 1);
  add_unordered(second(), number, 2);
  join();
  const cudaGraphExec_t executable = end();
  std::set<int> seen;
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(cudaMemsetAsync(number.data(), 0, sizeof(int), first()));
    ASSERT_OK(cudaGraphLaunch(executable, first()));
    ASSERT_OK(cudaStreamSynchronize(first()));
    seen.insert(number.get());
  }
  EXPECT_TRUE(seen.contains(12) && seen.contains(21));
  ASSERT_OK(cudaGraphExecDestroy(executable));
}

TEST_F(Graphs, StreamPrioritiesNeedTheNodePriorityFlag) {
  const Number number(0);
  cudaStream_t greatest = nullptr;
  ASSERT_OK(cudaStreamCreateWithPriority(&greatest, cudaStreamNonBlocking, -5));
  begin();
  fork();
  add_unordered(first(), number, 1);
  ASSERT_OK(cudaEventRecord(event(2), second()));
  ASSERT_OK(cudaStreamWaitEvent(greatest, event(2)));
  add_unordered(greatest, number, 2);
  ASSERT_OK(cudaEventRecord(event(1), greatest));
  ASSERT_OK(cudaStreamWaitEvent(first(), event(1)));
  cudaGraph_t graph = nullptr;
  ASSERT_OK(cudaStreamEndCapture(first(), &graph));
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 2));
  ASSERT_OK(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority));
  ASSERT_OK(cudaGraphDestroy(graph));
  ASSERT_OK(cudaGraphLaunch(executable, first()));
  ASSERT_OK(cudaStreamSynchronize(first()));
  EXPECT_TRUE(number.get() == 12 || number.get() == 21);
  ASSERT_OK(cudaGraphExecDestroy(executable));
  ASSERT_OK(cudaStreamDestroy(greatest));
}

// The collectives of each communicator are a chain.
TEST_F(Graphs, CollectivesOfSeveralCommunicatorsMustBeOrdered) {
  const char communicators[2] = {};
  for (const bool ordered : {false, true}) {
    begin();
    fork();
    ASSERT_OK(enqueue(
        first(), "one", [] {}, &communicators[0]));
    ASSERT_OK(enqueue(
        second(), "other", [] {}, &communicators[ordered ? 0 : 1]));
    join();
    ASSERT_OK(enqueue(
        first(), "other", [] {}, &communicators[1]));
    cudaGraph_t graph = nullptr;
    ASSERT_OK(cudaStreamEndCapture(first(), &graph));
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), ordered ? cudaSuccess : cudaErrorInvalidValue);
    EXPECT_EQ(executable != nullptr, ordered);
    if (ordered) cudaGraphExecDestroy(executable);
    ASSERT_OK(cudaGraphDestroy(graph));
    cudaGetLastError();
  }
}

TEST_F(Graphs, ExternalRecordsMeasureEachLaunch) {
  begin();
  ASSERT_OK(cudaEventRecordWithFlags(event(0), first(), cudaEventRecordExternal));
  ASSERT_OK(enqueue(first(), "sleeps", [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }));
  ASSERT_OK(cudaEventRecordWithFlags(event(1), first(), cudaEventRecordExternal));
  const cudaGraphExec_t executable = end();
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(cudaGraphLaunch(executable, first()));
    ASSERT_OK(cudaEventSynchronize(event(1)));
    float milliseconds = 0;
    ASSERT_OK(cudaEventElapsedTime(&milliseconds, event(0), event(1)));
    EXPECT_GE(milliseconds, 2);
  }
  ASSERT_OK(cudaGraphExecDestroy(executable));
}

TEST_F(Graphs, ExternalRecordsAreInvalidOutsideACapture) {
  EXPECT_CUDA(cudaErrorIllegalState, cudaEventRecordWithFlags(event(), first(), cudaEventRecordExternal));
}

TEST_F(Graphs, CaptureRefusesToWaitForItself) {
  begin();
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(first()));
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, enqueue(first(), "work", [] {}));
  expect_end(cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(first()));
  expect_end(cudaErrorStreamCaptureInvalidated);
  begin();
  ASSERT_OK(cudaEventRecord(event(), first()));
  EXPECT_CUDA(cudaErrorCapturedEvent, cudaEventSynchronize(event()));
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, CaptureRefusesUnsafeCallsByItsMode) {
  const auto allocate = [] {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, 16);
    if (status == cudaSuccess) cudaFree(data);
    cudaGetLastError();
    return status;
  };
  const auto allocate_elsewhere = [&] {
    cudaError_t status = cudaSuccess;
    std::thread([&] { status = allocate(); }).join();
    return status;
  };
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
  expect_end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate_elsewhere(), cudaSuccess);
  expect_end(cudaSuccess);
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate(), cudaErrorStreamCaptureUnsupported);
  expect_end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(allocate(), cudaSuccess);
  expect_end(cudaSuccess);
}

// In any mode and on any thread, because the device includes the captured stream.
TEST_F(Graphs, CaptureRefusesWaitsForItsDevice) {
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    const auto wait_elsewhere = [](int device) {
      cudaError_t status = cudaSuccess;
      std::thread([&] {
        cudaSetDevice(device);
        status = cudaDeviceSynchronize();
      }).join();
      return status;
    };
    begin(mode);
    EXPECT_EQ(wait_elsewhere(1), cudaSuccess);
    expect_end(cudaSuccess);
    begin(mode);
    EXPECT_EQ(wait_elsewhere(0), cudaErrorStreamCaptureUnsupported);
    expect_end(cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(Graphs, CaptureRefusesDependenciesOnWorkOutsideIt) {
  ASSERT_OK(cudaEventRecord(event(), second()));
  begin();
  EXPECT_CUDA(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(first(), event()));
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, CaptureRefusesAnUnjoinedFork) {
  const Number number(0);
  begin();
  fork();
  add(second(), number, 1);
  expect_end(cudaErrorStreamCaptureUnjoined);
  add(second(), number, 2);  // the stream can be used again
  ASSERT_OK(cudaStreamSynchronize(second()));
  EXPECT_EQ(number.get(), 2);
}

TEST_F(Graphs, DestroyingAStreamInvalidatesItsCapture) {
  cudaStream_t forked = nullptr;
  ASSERT_OK(cudaStreamCreateWithFlags(&forked, cudaStreamNonBlocking));
  begin();
  ASSERT_OK(cudaEventRecord(event(), first()));
  ASSERT_OK(cudaStreamWaitEvent(forked, event()));
  ASSERT_OK(cudaStreamDestroy(forked));
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, TwoCapturesCannotBeJoined) {
  begin();
  ASSERT_OK(cudaStreamBeginCapture(second(), cudaStreamCaptureModeThreadLocal));
  ASSERT_OK(cudaEventRecord(event(), first()));
  EXPECT_CUDA(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(second(), event()));
  expect_end(cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(second(), &graph));
}

TEST_F(Graphs, CaptureMustEndOnItsStreamAndThread) {
  const Number number(0);
  begin();
  fork();
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(second(), &graph));
  expect_end(cudaErrorStreamCaptureInvalidated);
  begin();
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(first(), &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_CUDA(cudaErrorIllegalState, cudaStreamBeginCapture(first(), cudaStreamCaptureModeRelaxed));
  expect_end(cudaSuccess);
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported,
              cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
}

TEST_F(Graphs, AnEventOfACaptureIsInvalidOutsideIt) {
  begin();
  ASSERT_OK(cudaEventRecord(event(), first()));
  expect_end(cudaSuccess);
  EXPECT_CUDA(cudaErrorCapturedEvent, cudaStreamWaitEvent(second(), event()));
  EXPECT_CUDA(cudaErrorCapturedEvent, cudaEventQuery(event()));
}

}  // namespace
}  // namespace lockstep::emulator
