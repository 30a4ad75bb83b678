// SPDX-License-Identifier: Apache-2.0
//
// MoreRanks: what twice as many ranks would bring where devices are busy already, and nothing that a rank
// changes alone is left to gain. A pure function over an epoch, by the model of overlap.h: each rank computes
// as it does now, and its buckets travel along a ring of twice the length, as fast as they do now.
#pragma once

#include <optional>
#include <string>

#include "launch/account/communication.h"

namespace lockstep {

// Where a training runs.
struct RanksNow {
  int ranks = 1;
  int local_ranks = 1, threads = 1, cores = 1;  // of rank 0's node
  bool on_gpu = false;
  double gradient_bytes = 0;  // that travel in a step
};

// What an epoch came to.
struct TrainedEpoch {
  double busy = 0;  // the mean over ranks
  double samples_per_second = 0;
  double steps = 0;
  double seconds = 0;                                 // of its steps
  double backward = 0;                                // rank 0's, of them
  const EpochCommunication* communication = nullptr;  // of several ranks; null: not known
};

struct MoreRanks {
  int ranks = 0;
  double samples_per_second = 0;  // estimated; of one rank that becomes two the most there can be
  std::string text;
};

// Nothing of an epoch in which devices were busy for less than nine tenths, or whose ranks' communication is
// not known.
std::optional<MoreRanks> more_ranks(const TrainedEpoch& epoch, const RanksNow& now);

}  // namespace lockstep
