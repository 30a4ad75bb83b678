// SPDX-License-Identifier: Apache-2.0
#include "launch/waiting.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include <sys/auxv.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr const char* kSpinCount = "GOMP_SPINCOUNT";

// Two threads that finish almost together should meet awake; from about the time on that waking a sleeper
// takes, sleeping costs no more than spinning did.
constexpr double kSpinSeconds = 5e-6;

// What OpenMP does between two looks.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("" ::: "memory");
#endif
}

// Between 5 and 50 ns, by processor. The shortest of a few: another process may take the core in between.
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

long bounded_spin_count() { return std::max(1L, static_cast<long>(kSpinSeconds / pause_seconds())); }

void bound_waiting(char** argv) {
  if (getenv(kSpinCount) != nullptr || getenv("OMP_WAIT_POLICY") != nullptr) return;
  // Started by naming the dynamic loader, that is what /proc/self/exe is.
  if (getauxval(AT_BASE) == 0) return;
  setenv(kSpinCount, std::to_string(bounded_spin_count()).c_str(), 1);
  execv("/proc/self/exe", argv);
  unsetenv(kSpinCount);  // it was not, and the next program may be
}

}  // namespace lockstep
