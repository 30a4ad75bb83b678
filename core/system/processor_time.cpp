// SPDX-License-Identifier: Apache-2.0
#include "core/system/processor_time.h"

#include <cinttypes>
#include <cstdio>
#include <ctime>

#include <pthread.h>

#include "core/error.h"

namespace lockstep {
namespace {

double seconds_of(clockid_t clock) {
  timespec time = {};
  CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double processor_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

double processor_seconds(std::thread& thread) {
  clockid_t clock = {};
  CHECK(pthread_getcpuclockid(thread.native_handle(), &clock) == 0);
  return seconds_of(clock);
}

double seconds_without_core() {
  std::FILE* file = std::fopen("/proc/thread-self/schedstat", "r");
  if (file == nullptr) return 0;
  std::uint64_t waited_ns = 0;
  const int found = std::fscanf(file, "%*s %" SCNu64, &waited_ns);
  std::fclose(file);
  return found == 1 ? static_cast<double>(waited_ns) * 1e-9 : 0;
}

}  // namespace lockstep
