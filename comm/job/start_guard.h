// SPDX-License-Identifier: Apache-2.0
//
// StartGuard: ends a job whose ranks do not all start. MPI_Init waits for all ranks without a limit, and no
// rank knows the others yet: a rank that is stopped before or in MPI_Init would block the job for ever. A
// thread waits beside MPI, ends the process at the limit, and reports the state of this machine's ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/job/launcher.h"

namespace lockstep {

// The environment variable with the limit in seconds, for systems where starting takes longer.
inline constexpr const char* kStartSecondsVariable = "LOCKSTEP_START_SECONDS";
// Its value, or five minutes. Throws ConfigError unless it is a whole number from 0 to 1,000,000.
std::chrono::seconds start_limit(const Environment& environment);

class StartGuard {
 public:
  // Until destruction: after `limit` (0: none), on ranks other than 0 up to six seconds later, the process
  // ends with exit_code::resumable, and its launcher ends the others. Time in which this process is itself
  // stopped does not count.
  explicit StartGuard(std::chrono::seconds limit);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void run(const Environment& environment);

  std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
