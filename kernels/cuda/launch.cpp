// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"

#include <atomic>
#include <map>
#include <mutex>

#include "core/error.h"

namespace lockstep {
namespace {

std::atomic<int> chosen_block_threads{kBlockThreads};

}  // namespace

int block_threads() { return chosen_block_threads; }

void set_block_threads(int threads) {
  if (threads < kWarpThreads || threads > kMostBlockThreads || threads % kWarpThreads != 0) {
    throw ConfigError(fmt::format("{} threads per block: allowed are multiples of {} up to {}", threads,
                                  kWarpThreads, kMostBlockThreads));
  }
  chosen_block_threads = threads;
}

std::int64_t enough_blocks(Device device) {
  constexpr int kResidentThreads = 2048;  // per multiprocessor, at most
  constexpr std::int64_t kRounds = 2;
  static std::mutex mutex;
  static std::map<int, std::int64_t> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device.index); found != known.end()) return found->second;
  int multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index));
  return known[device.index] = kRounds * (kResidentThreads / kBlockThreads) * multiprocessors;
}

}  // namespace lockstep
