// SPDX-License-Identifier: Apache-2.0
//
// LoaderPace: how well a loader keeps up with the training loop, and how many threads it should have.
#pragma once

namespace lockstep {

struct LoaderPace {
  int threads = 1;               // that filled batches
  double seconds = 0;            // wall time over some batches
  double waited_seconds = 0;     // part of it spent waiting for batches
  double processor_seconds = 0;  // CPU time of all loader threads
};

// Returns how many threads fill a batch in the time that computing with one takes, with a reserve of 10 %.
// Returns at least one more than pace.threads (the threads may wait for a disk), at most `most`, and never
// fewer than pace.threads. Returns pace.threads if waiting takes at most 0.5 % of the time.
int threads_wanted(const LoaderPace& pace, int most);

}  // namespace lockstep
