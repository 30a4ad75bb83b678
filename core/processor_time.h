// SPDX-License-Identifier: Apache-2.0
//
// Processor time: how long threads ran on some core, in seconds, by the kernel's clocks. Unlike wall time it
// does not pass while a thread sleeps, and on several cores it passes several times as fast.
#pragma once

#include <thread>

namespace lockstep {

// Of all threads of this process, those that ended included.
double processor_seconds();
// Of one that is not joined yet. Any thread may ask.
double processor_seconds(std::thread& thread);

// How long the calling thread was ready to run and had no core, by Linux; 0 where the system does not tell.
double seconds_without_core();

// What a rank's process took, by what for. Adds up to the whole.
struct ProcessorAccount {
  double compute = 0;        // all but the two others: the rank's thread, its compute threads, and libraries'
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
