// SPDX-License-Identifier: Apache-2.0
//
// StopSignals: what the system, a scheduler or a person asks of this process while it runs. Each of
// kStopSignals asks it to stop, and SIGUSR2 asks a training to save. Any number of stop signals is one
// request: schedulers, launchers and hooks send the same signal to a rank and to the whole job. A process
// with nothing to save ends at once with exit_code::resumable. A training or a sweep polls stop(), saves and
// ends by itself; at the end of its grace it is ended with the same code.
//
// Handlers run on a thread of this object alone, never on one that computes: oneDNN's products of matrices
// let the stack pointer point into memory of theirs, below which a handler's frame would overwrite the heap.
#pragma once

#include <atomic>

namespace lockstep {

class StopSignals {
 public:
  // The object of this process, which lives as long as the process does: a signal that comes while it ends
  // does not change its exit code. The first call is made before there is any other thread. Signals that are
  // ignored (nohup) stay so.
  static StopSignals& of_process();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The caller can save from now on and polls stop(). If the process still runs `seconds` after the first
  // request, it ends with exit_code::resumable.
  void allow_grace(double seconds);
  // The signal that asked to stop first; 0: none did.
  int stop() const;
  // True if SIGUSR2 came since the last call.
  bool take_request();

 private:
  StopSignals();
  void watch();

  int wake_ = -1;                          // end of a pipe: a byte for the first request to stop
  std::atomic<double> grace_seconds_{-1};  // negative: a request ends the process at once
};

// Blocks the job's signals in this thread, and so in those that it starts: one that comes waits for the first
// call of of_process(), also across exec.
void block_job_signals();

}  // namespace lockstep
