// SPDX-License-Identifier: Apache-2.0
//
// StopSignals: requests of the system, a scheduler or a user to this process. Each of kStopSignals asks it to
// stop, and SIGUSR2 asks a training to save. Any number of stop signals is one request: schedulers, launchers
// and hooks send the same signal to a rank and to the whole job. A process with nothing to save ends at once
// with exit_code::resumable. A training or a sweep polls stop(), saves and ends by itself; at the end of its
// grace period the process ends with the same code.
//
// Handlers run only on this object's thread, never on one that computes: oneDNN's matrix products let the
// stack pointer point into their own memory, and a handler's frame would overwrite the heap below it.
#pragma once

#include <atomic>

namespace lockstep {

class StopSignals {
 public:
  // The object of this process, which is never destroyed: a signal during the end of the process does not
  // change its exit code. The first call comes before any other thread starts. Signals that are ignored
  // (nohup) stay ignored.
  static StopSignals& of_process();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The caller can save from now on and polls stop(). If the process still runs `seconds` after the first
  // request, it ends with exit_code::resumable.
  void allow_grace(double seconds);
  // A request ends the process without a message: for a command whose user ends it that way.
  void end_quietly();
  // The first signal that asked to stop; 0: none.
  int stop() const;
  // True if SIGUSR2 came since the last call.
  bool take_request();

 private:
  StopSignals();
  void watch();

  int wake_ = -1;                          // end of a pipe: a byte for the first request to stop
  std::atomic<double> grace_seconds_{-1};  // negative: a request ends the process at once
  std::atomic<bool> quiet_{false};
};

// Blocks the job's signals in this thread and in threads that it starts: a signal stays pending until the
// first call of of_process(), also across exec.
void block_job_signals();

}  // namespace lockstep
