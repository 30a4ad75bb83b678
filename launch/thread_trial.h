// SPDX-License-Identifier: Apache-2.0
//
// Whether a rank that has several cores does better to leave one of them to communication is nothing that the
// number of cores tells: it depends on the link, and on how much of a step is communication. So it is tried:
// a few steps of the training itself with all its threads and with one fewer, in turns. Whatever those steps
// changed is put back as it was.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "launch/trainer.h"

namespace lockstep {

struct ThreadTrialOptions {
  int turns = 5;             // of each way
  std::int64_t steps = 2;    // timed in a turn, behind one that is not
  double least_gain = 0.03;  // of a step's time: less is within what a machine's noise makes
};

struct ThreadTrial {
  int threads = 1;            // of this rank, from now on
  bool spares = false;        // a core, on each rank that has several
  double all_seconds = 0;     // median step of the slowest rank, with all threads
  double spared_seconds = 0;  // and with one fewer
};

// Collective. threads: of this rank. Trains, and sets the trainer back to where it was, bit for bit; the
// backend then computes with the threads that were chosen. Every rank chooses alike.
ThreadTrial try_sparing_a_core(Trainer& trainer, Backend& backend, Communicator& host, int threads,
                               const ThreadTrialOptions& options = {});

// Collective. Whether there is something to try: several ranks on CPUs, one of them with several threads that
// nobody asked for, and so long a training that the trial does not count.
bool sparing_is_open(Communicator& host, int threads, std::int64_t steps);

// In one line.
std::string describe(const ThreadTrial& trial, int threads);

}  // namespace lockstep
