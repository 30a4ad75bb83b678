// SPDX-License-Identifier: Apache-2.0
//
// LoaderPace: how a loader kept up with whoever takes its batches, and how many threads it should have.
#pragma once

namespace lockstep {

struct LoaderPace {
  int threads = 1;               // that filled batches
  double seconds = 0;            // in which some batches were taken
  double waited_seconds = 0;     // of these, for a batch that was not ready
  double processor_seconds = 0;  // that all threads took of cores
};

// As many as take no longer for a batch than is computed with it, a tenth more to spare; but one more, at
// least, where batches are waited for (threads may wait themselves, for a disk), and no more than `most`. No
// fewer than there are, and as many where waiting is less than 0.5 % of the time.
int threads_wanted(const LoaderPace& pace, int most);

}  // namespace lockstep
