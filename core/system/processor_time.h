// SPDX-License-Identifier: Apache-2.0
//
// Processor time: how long threads ran on some core, in seconds, by the kernel's clocks. Unlike wall time it
// does not advance while a thread sleeps, and on several cores it can advance several times as fast.
#pragma once

#include <thread>

namespace lockstep {

// Total over all threads of this process, including those that have ended.
double processor_seconds();
// For one thread, which must not be joined yet. Callable from any thread.
double processor_seconds(std::thread& thread);

// Seconds that the calling thread was ready to run but had no core, from Linux; 0 if unavailable.
double seconds_without_core();

// Processor time of a rank's process by purpose. The parts add up to the total.
struct ProcessorAccount {
  double compute = 0;  // everything else: the rank's thread, its compute threads, and libraries' threads
  double communication = 0;  // the threads that run collectives
  double data = 0;           // the threads that fill batches

  double total() const { return compute + communication + data; }
  friend ProcessorAccount operator-(const ProcessorAccount& a, const ProcessorAccount& b) {
    return {.compute = a.compute - b.compute,
            .communication = a.communication - b.communication,
            .data = a.data - b.data};
  }
};

}  // namespace lockstep
