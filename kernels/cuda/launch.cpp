// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"

#include <atomic>

#include "core/error.h"

namespace lockstep {
namespace {

std::atomic<int> chosen_block_threads{kBlockThreads};

}  // namespace

int block_threads() { return chosen_block_threads; }

void set_block_threads(int threads) {
  if (threads < kWarpThreads || threads > kMostBlockThreads || threads % kWarpThreads != 0) {
    throw ConfigError(fmt::format("{} threads of a block; allowed are multiples of {} up to {}", threads,
                                  kWarpThreads, kMostBlockThreads));
  }
  chosen_block_threads = threads;
}

}  // namespace lockstep
