// SPDX-License-Identifier: Apache-2.0
//
// StartGuard: ends a job whose ranks do not all start. Until all have, MPI waits for them without a limit,
// and nobody else has been told of anybody: a rank that is stopped before, or in, MPI_Init would keep the job
// for ever. A thread waits beside MPI, and tells what the system tells of the ranks of this machine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "comm/launcher.h"

namespace lockstep {

// The limit in seconds, for whoever knows that starting takes longer here.
inline constexpr const char* kStartSecondsVariable = "LOCKSTEP_START_SECONDS";
// What it says, or five minutes. Throws ConfigError where that is no whole number from 0 to a million.
std::chrono::seconds start_limit(const Environment& environment);

class StartGuard {
 public:
  // From now on until the end of this: after `limit`, 0 for any, the process ends with exit_code::resumable,
  // and its launcher ends the others. Time in which this process is itself stopped does not count.
  explicit StartGuard(std::chrono::seconds limit);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void run();

  std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;  // last: it uses the rest
};

// Lines of what the system tells of the other processes of this machine that this one's launcher started:
// where the threads of those stand that are stopped; "" where there is none.
std::string describe_other_ranks();

}  // namespace lockstep
