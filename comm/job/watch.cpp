// SPDX-License-Identifier: Apache-2.0
#include "comm/job/watch.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

void run(const std::stop_token& stop, std::chrono::milliseconds interval,
         const std::function<bool()>& healthy) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  do {
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, interval, [] { return false; });
  } while (!stop.stop_requested() && healthy());
}

}  // namespace

Watch::Watch(std::chrono::milliseconds interval, std::function<bool()> healthy)
    : thread_([interval, healthy = std::move(healthy), rank = current_rank()](const std::stop_token& stop) {
        const RankScope scope(rank);
        run(stop, interval, healthy);
      }) {}

}  // namespace lockstep
