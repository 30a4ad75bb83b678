// SPDX-License-Identifier: Apache-2.0
//
// Stack traces of threads, to diagnose a process that hangs. A thread of this process is interrupted by a
// signal and records its own stack. For another process, /proc is read, which gives less detail. Names are
// those of the program's exported symbols (a program is linked with ENABLE_EXPORTS); a function without one
// is reported as "file+0x1234", which addr2line accepts.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lockstep {

// Sets the calling thread's name, at most 15 characters. Lockstep's own threads begin with kThreadPrefix.
inline constexpr std::string_view kThreadPrefix = "ls-";
void name_thread(const char* name);
// Starts a thread with this name that blocks all signals. Throws std::system_error.
std::thread start_without_signals(const char* name, std::function<void()> work);

// Call before the first backtraces(), any number of times. Sets the signal handler and loads the unwinder,
// which must not be loaded inside the handler.
void prepare_backtraces();

struct ThreadStack {
  std::string thread;               // "main thread", or its name
  std::vector<std::string> frames;  // innermost first; empty: the thread did not answer
};

// Stacks of the main thread and of Lockstep's own threads, without the calling thread. Waits at most
// longest_wait for a thread to start its answer and as long again for one that has started. Concurrent
// callers take turns.
std::vector<ThreadStack> backtraces(std::chrono::milliseconds longest_wait);

// Text from /proc about a process of this machine: its state, and where its main thread and Lockstep's own
// threads are. "" if the process does not exist.
std::string describe_process(int process);
// The process's state as in /proc: 'R', 'S', 'T' (stopped), 'Z', ..; 0 if it does not exist.
char process_state(int process);

}  // namespace lockstep
