// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/barrier.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futex is shared by processes, so these are not the private operations.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void NodeBarrier::wait(std::uint32_t ranks, int spins, const WaitPlace& place) {
  const std::uint32_t generation = generation_.load();
  if (arrived_.fetch_add(1) + 1 == ranks) {
    arrived_.store(0);
    generation_.store(generation + 1);
    if (sleepers_.load() > 0) futex(generation_, FUTEX_WAKE, INT_MAX, nullptr);
    return;
  }
  for (int spin = 0; spin < spins; ++spin) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    relax();
  }
  constexpr timespec kGlance = {.tv_sec = 0, .tv_nsec = 100'000'000};  // between checks for an abandoned job
  struct Sleeper {
    Word& sleepers;
    explicit Sleeper(Word& word) : sleepers(word) { sleepers.fetch_add(1); }
    ~Sleeper() { sleepers.fetch_sub(1); }
  } const sleeper(sleepers_);
  PeerWait wait(place, "the ranks of its node");
  while (generation_.load() == generation) {
    wait.look();
    futex(generation_, FUTEX_WAIT, generation, &kGlance);
  }
}

}  // namespace lockstep
