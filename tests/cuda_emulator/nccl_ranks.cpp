// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl_ranks.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr int kDevices = 4;
constexpr unsigned kSecondsOfRank = 60;

class SharedLobby {
 public:
  SharedLobby()
      : memory_(mmap(nullptr, sizeof(Lobby), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        lobby_(new (memory_) Lobby()) {}
  ~SharedLobby() { munmap(memory_, sizeof(Lobby)); }
  SharedLobby(const SharedLobby&) = delete;
  SharedLobby& operator=(const SharedLobby&) = delete;
  Lobby& get() { return *lobby_; }

 private:
  void* memory_;
  Lobby* lobby_;
};

void set(const Settings& settings) {
  setenv("LOCKSTEP_EMULATED_GPUS", std::to_string(kDevices).c_str(), 1);
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
  }
}

// Runs in a separate process.
template <typename Body>
pid_t start(const Settings& settings, Body body) {
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process != 0) return process;
  alarm(kSecondsOfRank);
  set(settings);
  body();
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);  // ThreadSanitizer changes the exit code if it has found a race
}

void run_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void Lobby::barrier(int ranks) {
  std::atomic_ref<int> arrived(arrived_);
  std::atomic_ref<int> passed(passed_);
  const int seen = passed;
  if (arrived.fetch_add(1) + 1 == ranks) {
    arrived = 0;
    ++passed;
  }
  while (passed == seen) std::this_thread::sleep_for(milliseconds(1));
}

ncclUniqueId Lobby::exchange_id(int rank, int ranks) {
  barrier(ranks);
  if (rank == 0) {
    EXPECT_EQ(ncclGetUniqueId(&id_), ncclSuccess);
  }
  barrier(ranks);
  return id_;
}

TestRank::TestRank(Lobby& at, int number, int count, int device) : rank(number), ranks(count), lobby(at) {
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  const ncclUniqueId id = lobby.exchange_id(rank, ranks);
  joined = ncclCommInitRank(&comm, ranks, id, rank);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
}

TestRank::~TestRank() {
  if (comm != nullptr) {
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess) << ncclGetLastError(nullptr);
  }
  const cudaError_t sound = synchronize();  // a broken device reports its error forever
  EXPECT_EQ(cudaStreamDestroy(stream), sound);
  for (void* data : memory_) cudaFree(data);
}

void* TestRank::memory(const void* host, std::size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  memory_.push_back(data);
  EXPECT_EQ(cudaMemcpyAsync(data, host, bytes, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaSuccess);
  return data;
}

void TestRank::read_bytes(void* to, const void* from, std::size_t bytes) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaSuccess);
}

ncclResult_t TestRank::async_error() {
  ncclResult_t found = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &found), ncclSuccess);
  return found;
}

ncclResult_t TestRank::wait_for_async_error() {
  for (int i = 0; i < 3000; ++i) {
    if (const ncclResult_t found = async_error()) return found;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return ncclSuccess;
}

cudaGraphExec_t TestRank::capture(const std::function<void()>& calls) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  calls();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return executable;
}

void run_ranks(int ranks, const RanksOptions& options, const std::function<void(Lobby&, int)>& body) {
  SharedLobby lobby;
  std::vector<pid_t> processes;
  if (options.ranks_are == RanksAre::threads) {
    processes.push_back(
        start(options.settings, [&] { run_threads(ranks, [&](int rank) { body(lobby.get(), rank); }); }));
  } else {
    for (int rank = 0; rank < ranks; ++rank) {
      processes.push_back(start(options.settings, [&] { body(lobby.get(), rank); }));
    }
  }
  for (std::size_t i = 0; i < processes.size(); ++i) {
    int status = 0;
    waitpid(processes[i], &status, 0);
    const bool killed = static_cast<int>(i) == options.killed_rank;
    EXPECT_EQ(status, killed ? SIGKILL : options.exit_code << 8) << "exit status of process " << i;
  }
}

}  // namespace lockstep
