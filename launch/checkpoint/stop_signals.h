// SPDX-License-Identifier: Apache-2.0
//
// StopSignals: what the system, a scheduler or a person asks of a training while it runs. SIGUSR1, SIGTERM,
// SIGINT and SIGHUP ask it to save and stop; SIGUSR2 to save and go on. A second one that asks to stop, more
// than a second after the first (schedulers and launchers send the same one twice), ends the process at once,
// as the system does. Before training begins there is nothing to save, and the first one ends the process
// with exit_code::resumable. Where the process is still there run.grace_seconds after the first, it ends with
// exit_code::resumable: what was saved before stays.
//
// Handlers run on a thread of this object alone, never on one that computes: oneDNN's products of matrices
// let the stack pointer point into memory of theirs, below which a handler's frame would overwrite the heap.
#pragma once

#include <csignal>
#include <thread>

namespace lockstep {

class StopSignals {
 public:
  // One at a time in a process, made before the threads that compute, which inherit that they get no such
  // signals from the thread that makes this. Signals that are ignored (nohup) stay so.
  explicit StopSignals(double grace_seconds);
  // Signals mean what they meant before. On the thread that made this.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on there is something to save, and somebody who looks.
  void begin_training();
  // The first that asked to stop; 0: none yet.
  int stop() const;
  // Whether one asked to save, since the last call.
  bool take_request();

 private:
  void watch(double grace_seconds);

  int pipe_[2] = {-1, -1};
  sigset_t masked_before_;
  std::thread watcher_;
};

// "SIGTERM"
const char* signal_name(int number);

}  // namespace lockstep
