// SPDX-License-Identifier: Apache-2.0
//
// Where threads stand: for whoever must tell what a process that hangs was doing. A thread of this process is
// interrupted by a signal and writes down its own stack, wherever it is; of another process what /proc tells
// is read, which says less. Names are those of the program's exported symbols (a program is linked with
// ENABLE_EXPORTS); a function without one is told as "file+0x1234", as addr2line takes it.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The calling thread's name, of at most 15 characters. Those of threads of ours begin with kThreadPrefix.
inline constexpr std::string_view kThreadPrefix = "ls-";
void name_thread(const char* name);

// Before the first backtraces(): sets the handler of the signal, and loads what unwinding needs, which must
// not happen inside of it. Any number of times.
void prepare_backtraces();

struct ThreadStack {
  std::string thread;               // "main thread", or its name
  std::vector<std::string> frames;  // innermost first; empty: it did not answer
};

// Of the main thread and of those of ours, but for the calling one. Waits for each answer no longer than
// that, and for other callers before.
std::vector<ThreadStack> backtraces(std::chrono::milliseconds longest_wait);

// Lines of what the system tells of a process of this machine: its state, and where its main thread and those
// of ours stand; "" where there is no such process.
std::string describe_process(int process);
// Its state as /proc has it: 'R', 'S', 'T' (stopped), 'Z', ..; 0 where there is no such process.
char process_state(int process);

}  // namespace lockstep
