// SPDX-License-Identifier: Apache-2.0
#include "data/sets/read_in_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/error.h"

namespace lockstep {

void read_in_threads(const ThreadedReads& reads,
                     const std::function<std::function<void(std::int64_t sample)>()>& reader) {
  std::atomic<std::int64_t> next = reads.begin;
  std::mutex mutex;
  std::exception_ptr failed;
  const int rank = current_rank();
  std::int64_t told = reads.begin - 1;
  const auto tell = [&](std::int64_t begun) {
    if (!reads.told_progress || told == std::min(begun, reads.end)) return;
    told = std::min(begun, reads.end);
    reads.told_progress(told - reads.begin, reads.end - reads.begin);
  };
  const auto work = [&](bool tells) {
    const RankScope scope(rank);
    try {
      const std::function<void(std::int64_t)> read = reader();
      for (std::int64_t sample = next++; sample < reads.end; sample = next++) {
        read(sample);
        if (tells) tell(next);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failed == nullptr) failed = std::current_exception();
      next = reads.end;
    }
  };
  tell(reads.begin);
  std::vector<std::future<void>> threads;
  try {
    while (static_cast<int>(threads.size()) < reads.threads - 1)
      threads.push_back(std::async(std::launch::async, work, false));
  } catch (const std::system_error&) {  // no more threads are allowed
  }
  work(true);
  for (std::future<void>& thread : threads) thread.get();
  if (failed != nullptr) std::rethrow_exception(failed);
  tell(reads.end);
}

}  // namespace lockstep
