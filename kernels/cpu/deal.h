// SPDX-License-Identifier: Apache-2.0
//
// Distributes pieces of work over the compute threads. Each thread starts with its own range, the same in
// every call, so that it finds its data in its cache; a thread that has finished takes pieces that other
// threads have not begun. So a thread that loses its core to another process delays the others by one piece,
// not by its whole range. The thread that runs a piece is not determined: no result may depend on it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include <omp.h>

namespace lockstep {

// Calls body(piece) once for each piece in [0, pieces), on at most `threads` threads including the caller;
// returns when all are done. body must not throw. It can select per-thread memory by omp_get_thread_num(),
// which is below `threads`. With fewer pieces than threads the whole team starts all the same, because GNU
// OpenMP ends the threads that a smaller team lacks and creates them again for the next.
template <typename Body>
void deal(std::int64_t pieces, int threads, Body body) {
  constexpr std::int64_t kStretches = 64;  // further threads start in these ranges, too
  struct alignas(64) Stretch {             // a cache line each
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  if (pieces <= 1 || threads <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  std::array<Stretch, kStretches> stretches;
  const std::int64_t count = std::min({pieces, std::int64_t{threads}, kStretches});
  for (std::int64_t i = 0; i < count; ++i) {
    stretches[static_cast<std::size_t>(i)].next = pieces * i / count;
    stretches[static_cast<std::size_t>(i)].end = pieces * (i + 1) / count;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t first = omp_get_thread_num() % count;
    for (std::int64_t i = 0; i < count; ++i) {
      Stretch& stretch = stretches[static_cast<std::size_t>((first + i) % count)];
      // Relaxed: the data that a piece reads were written before the team started.
      for (std::int64_t piece = 0;
           (piece = stretch.next.fetch_add(1, std::memory_order_relaxed)) < stretch.end;)
        body(piece);
    }
  }
}

template <typename Body>
void deal(std::int64_t pieces, Body body) {
  deal(pieces, omp_get_max_threads(), body);
}

}  // namespace lockstep
