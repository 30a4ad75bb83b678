// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/waiting.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include <sys/auxv.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr const char* kSpinCount = "GOMP_SPINCOUNT";

// Threads that finish almost together should not sleep. After about the time of a wake-up, which is 50 us in
// a virtual machine, sleeping costs no more than the spinning before it.
constexpr double kSpinSeconds = 50e-6;

// The instruction that OpenMP executes between two polls.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("" ::: "memory");
#endif
}

// 5 to 50 ns, by processor. Takes the shortest of three measurements, as another process may interrupt one.
double pause_seconds() {
  constexpr int kPauses = 1000;
  double best = 1;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPauses; ++i) pause();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return std::max(best / kPauses, 1e-10);
}

}  // namespace

void bound_waiting(char** argv) {
  if (getenv(kSpinCount) != nullptr || getenv("OMP_WAIT_POLICY") != nullptr) return;
  // If the program was started through the dynamic loader, /proc/self/exe is the loader.
  if (getauxval(AT_BASE) == 0) return;
  const long spins = std::max(1L, static_cast<long>(kSpinSeconds / pause_seconds()));
  setenv(kSpinCount, std::to_string(spins).c_str(), 1);
  execv("/proc/self/exe", argv);
  unsetenv(kSpinCount);  // the restart failed; child programs must not inherit it
}

}  // namespace lockstep
