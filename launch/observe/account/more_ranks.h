// SPDX-License-Identifier: Apache-2.0
//
// MoreRanks: estimated gain of twice as many ranks where devices are busy already and no change on a single
// rank gains much. A pure function of an epoch, by the model of overlap.h: each rank computes at its present
// rate, and its buckets travel along a ring of twice the length at the present speed.
#pragma once

#include <optional>
#include <string>

#include "launch/train/clock/communication.h"

namespace lockstep {

// The ranks and their hardware.
struct RanksNow {
  int ranks = 1;
  int local_ranks = 1, threads = 1, cores = 1;  // on rank 0's node
  bool on_gpu = false;
  double gradient_bytes = 0;  // sent in a step
};

// Results of an epoch.
struct TrainedEpoch {
  double busy = 0;  // the mean over ranks
  double samples_per_second = 0;
  double steps = 0;
  double seconds = 0;             // duration of its steps
  double backward = 0;            // rank 0's, in its steps
  std::int64_t accumulation = 1;  // micro-batches of a step; gradients are sent during the last one
  const EpochCommunication* communication = nullptr;  // with several ranks; null: not known
};

struct MoreRanks {
  int ranks = 0;
  double samples_per_second = 0;  // estimated; for one rank an upper bound
  std::string text;
};

// Returns nothing if devices were busy for less than nine tenths of the epoch, or if the communication of
// several ranks is not known.
std::optional<MoreRanks> more_ranks(const TrainedEpoch& epoch, const RanksNow& now);

}  // namespace lockstep
