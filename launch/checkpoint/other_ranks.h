// SPDX-License-Identifier: Apache-2.0
//
// The state of a training on another number of ranks than it was saved with. What all ranks share stays as it
// is. Of what each rank had for itself:
// - what losses of the epoch add up to is added up over the saved ranks, and rank 0 has it;
// - what has a shared twin of the same name, as running statistics have, becomes the mean over the saved
//   ranks, on every rank;
// - what exchanges of gradients have not sent yet is added up over the saved ranks, element by element, and
//   dealt out in equal parts to the ranks that hold the element now: the sum stays.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_exchange.h"
#include "launch/checkpoint/manifest.h"
#include "models/state_copy.h"

namespace lockstep {

// One thing that exchanges remember, of all saved ranks: "conv1.weight.residual".
struct MergedPiece {
  std::vector<double> sum;   // by element; elements that no rank had are 0
  std::vector<float> first;  // of the first rank that had it whole, or as one number; empty: none had
};
using MergedExchange = std::map<std::string, MergedPiece>;

struct RankState {
  StateCopy state;
  MergedExchange exchange;  // empty where the state has all, or there is nothing
};

// Of a rank among so many; its own shard and the shared one where the number is the saved one. Throws
// DataError, IoError.
RankState state_for(const std::filesystem::path& folder, const Manifest& manifest, int rank, int ranks);

// Adds the pieces of one saved rank.
void merge(MergedExchange& merged, std::span<const StateCopy::Tensor> pieces);

// Collective over host memory. What this rank's exchange starts with, by the names it has for it. Logs what
// becomes of the sum. Throws an agreed DataError for a piece that was not saved.
std::vector<StateCopy::Tensor> deal(const MergedExchange& merged, std::span<const ExchangeState> mine,
                                    Communicator& host);

}  // namespace lockstep
