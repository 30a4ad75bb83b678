// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the emulated NCCL for its tests: processes, or threads of one process with one device each. The
// ranks of each test run in separate processes, so that a broken device does not affect other tests.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nccl.h>

namespace lockstep {

enum class RanksAre { threads, processes };

// The environment of one rank's process: "NAME=value".
using Settings = std::vector<std::string>;

struct RanksOptions {
  RanksAre ranks_are = RanksAre::processes;
  Settings settings;
  int killed_rank = -1;  // this rank must end by SIGKILL
  int exit_code = 0;     // expected of every process that is not killed
};

// The meeting point of a test's ranks outside NCCL, in shared memory.
class Lobby {
 public:
  // Returns the id that rank 0 creates, on all ranks. A test may create several communicators.
  ncclUniqueId exchange_id(int rank, int ranks);
  void barrier(int ranks);  // for this many ranks, which may differ from call to call

 private:
  ncclUniqueId id_ = {};
  int arrived_ = 0;
  int passed_ = 0;
};

// One rank's communicator on its device, with a stream. The destructor ends both.
class TestRank {
 public:
  // Ranks use devices 0, 1, ...
  TestRank(Lobby& at, int number, int count) : TestRank(at, number, count, number) {}
  TestRank(Lobby& at, int number, int count, int device);
  ~TestRank();
  TestRank(const TestRank&) = delete;
  TestRank& operator=(const TestRank&) = delete;

  const int rank;
  const int ranks;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  ncclResult_t joined = ncclSuccess;
  Lobby& lobby;

  void barrier() { lobby.barrier(ranks); }
  // Device memory with these values. It is freed with the rank.
  void* memory(const void* host, std::size_t bytes);
  template <typename T>
  T* memory(const std::vector<T>& values) {
    return static_cast<T*>(memory(values.data(), values.size() * sizeof(T)));
  }
  // Reads after all work in the stream.
  template <typename T>
  std::vector<T> read(const T* data, std::size_t count) {
    std::vector<T> values(count);
    read_bytes(values.data(), data, count * sizeof(T));
    return values;
  }
  cudaError_t synchronize() { return cudaStreamSynchronize(stream); }
  ncclResult_t async_error();
  // Waits some time for an asynchronous error.
  ncclResult_t wait_for_async_error();
  ncclResult_t all_reduce(float* data, std::size_t count) {
    return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream);
  }
  // Captures the work that `calls` enqueues in the stream, as a graph.
  cudaGraphExec_t capture(const std::function<void()>& calls);

 private:
  void read_bytes(void* to, const void* from, std::size_t bytes);

  std::vector<void*> memory_;
};

// Runs body(lobby, rank) on this many ranks and expects that all succeed. A rank is ended after a minute.
void run_ranks(int ranks, const RanksOptions& options, const std::function<void(Lobby&, int)>& body);

}  // namespace lockstep
