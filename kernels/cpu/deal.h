// SPDX-License-Identifier: Apache-2.0
//
// Work dealt to the compute threads in pieces. Each thread begins with a stretch of its own, the same in
// every call, so that what it left in its cache is found again; one that is done takes what others have not
// begun. A thread that had to leave its core to another process thus holds the others up by the piece it has
// begun, not by all of its share. Which thread does a piece is left to chance: no result may depend on it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include <omp.h>

namespace lockstep {

// body(piece) once for each piece from 0 on, by at most this many threads, of which the caller is one; all
// are done on return. body must not throw, and memory that it has for each thread it finds by
// omp_get_thread_num(), which is below `threads`.
template <typename Body>
void deal(std::int64_t pieces, int threads, Body body) {
  constexpr std::int64_t kStretches = 64;  // more threads than these only help
  struct alignas(64) Stretch {             // a cache line each
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  const int team = static_cast<int>(std::min<std::int64_t>(threads, pieces));
  if (team <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  std::array<Stretch, kStretches> stretches;
  const std::int64_t count = std::min<std::int64_t>(team, kStretches);
  for (std::int64_t i = 0; i < count; ++i) {
    stretches[static_cast<std::size_t>(i)].next = pieces * i / count;
    stretches[static_cast<std::size_t>(i)].end = pieces * (i + 1) / count;
  }
#pragma omp parallel num_threads(team)
  {
    const std::int64_t first = omp_get_thread_num() % count;
    for (std::int64_t i = 0; i < count; ++i) {
      Stretch& stretch = stretches[static_cast<std::size_t>((first + i) % count)];
      // Relaxed: what a piece reads was written before the team began.
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
