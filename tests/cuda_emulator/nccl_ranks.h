// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the emulated NCCL for its tests: processes, or threads of one process with a device each. Every
// test's ranks run in processes of their own, so that a device that ends with an error ends with the test.
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
  int killed_rank = -1;  // is to end by SIGKILL
  int exit_code = 0;     // of every process that is not killed
};

// Where the ranks of one test meet, besides NCCL; in shared memory.
class Lobby {
 public:
  // Of rank 0's making, for all. A test may make several communicators.
  ncclUniqueId exchange_id(int rank, int ranks);
  void barrier(int ranks);  // of so many, who may be fewer each time

 private:
  ncclUniqueId id_ = {};
  int arrived_ = 0;
  int passed_ = 0;
};

// One rank's communicator on its device, with a stream, until it ends.
class TestRank {
 public:
  // The ranks' devices are 0, 1, ...
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
  // Device memory with these bytes, freed with the rank.
  void* memory(const void* host, std::size_t bytes);
  template <typename T>
  T* memory(const std::vector<T>& values) {
    return static_cast<T*>(memory(values.data(), values.size() * sizeof(T)));
  }
  // After all that was given to the stream.
  template <typename T>
  std::vector<T> read(const T* data, std::size_t count) {
    std::vector<T> values(count);
    read_bytes(values.data(), data, count * sizeof(T));
    return values;
  }
  cudaError_t synchronize() { return cudaStreamSynchronize(stream); }
  ncclResult_t async_error();
  // Waits for an asynchronous error, for a while.
  ncclResult_t wait_for_async_error();
  ncclResult_t all_reduce(float* data, std::size_t count) {
    return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream);
  }
  // What `calls` gives to the stream, as a graph.
  cudaGraphExec_t capture(const std::function<void()>& calls);

 private:
  void read_bytes(void* to, const void* from, std::size_t bytes);

  std::vector<void*> memory_;
};

// Runs body(lobby, rank) as so many ranks; expects that all end well. A rank ends after a minute.
void run_ranks(int ranks, const RanksOptions& options, const std::function<void(Lobby&, int)>& body);

}  // namespace lockstep
