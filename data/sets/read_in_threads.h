// SPDX-License-Identifier: Apache-2.0
//
// Reads a range of samples with several threads, each sample once.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

struct ThreadedReads {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // after the last sample
  int threads = 1;       // the caller's included; fewer run if the system allows no more
  // Called by the calling thread at the start, after each of its samples and at the end, with the number of
  // samples begun and in all. Null: no reports.
  std::function<void(std::int64_t done, std::int64_t all)> told_progress = {};
};

// Each thread calls reader() once, and the result for its samples. After an exception no further sample
// begins, and the first one is thrown when all threads have ended.
void read_in_threads(const ThreadedReads& reads,
                     const std::function<std::function<void(std::int64_t sample)>()>& reader);

}  // namespace lockstep
