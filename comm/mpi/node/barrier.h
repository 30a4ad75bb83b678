// SPDX-License-Identifier: Apache-2.0
//
// NodeBarrier: a barrier in memory that the processes of one node share. It spins for a moment, then sleeps
// on a futex, so ranks may outnumber cores. Sense is kept in a generation counter, so it is reusable at once.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/job/job_state.h"

namespace lockstep {

class NodeBarrier {
 public:
  // Throws GaveUp on this rank if the place's job is abandoned before all ranks have arrived.
  void wait(std::uint32_t ranks, int spins, const WaitPlace& place);

 private:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "shared between processes, and a futex");

  alignas(64) Word arrived_{0};
  alignas(64) Word generation_{0};
  alignas(64) Word sleepers_{0};
};

}  // namespace lockstep
