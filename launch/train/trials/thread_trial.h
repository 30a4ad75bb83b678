// SPDX-License-Identifier: Apache-2.0
//
// Decides whether a rank with several cores leaves one of them to communication. That depends on the link and
// on the share of communication in a step, not on the number of cores alone. So it times a few steps of the
// training itself with all threads and with one fewer, in turns, and then restores the trainer's state.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "launch/train/trainer.h"

namespace lockstep {

struct ThreadTrialOptions {
  int turns = 5;             // per number of threads
  std::int64_t steps = 2;    // timed per turn, after one untimed step
  double least_gain = 0.03;  // fraction of a step; smaller gains are noise
};

struct ThreadTrial {
  int threads = 1;            // chosen for this rank
  bool spares = false;        // each rank with several cores leaves one to communication
  double all_seconds = 0;     // median step of the slowest rank, all threads
  double spared_seconds = 0;  // and with one fewer
};

// Collective. threads: of this rank. Trains, then restores the trainer's state bit for bit and sets the
// chosen number of threads in the backend. All ranks make the same choice.
ThreadTrial try_sparing_a_core(Trainer& trainer, Backend& backend, Communicator& host, int threads,
                               const ThreadTrialOptions& options = {});

// Collective. True if there are several ranks, one of them with several threads, and `steps` are enough for
// the trial's cost not to matter. The caller excludes GPUs and a configured number of threads.
bool sparing_is_open(Communicator& host, int threads, std::int64_t steps);

// The result in one line.
std::string describe(const ThreadTrial& trial, int threads);

}  // namespace lockstep
