// SPDX-License-Identifier: Apache-2.0
//
// Restores a training on a different number of ranks than it was saved with, or gradient exchanges that
// divide their state differently: on other nodes, or with other buckets. Shared state is restored
// unchanged. State of each rank is merged:
// - Loss totals of the epoch are added up over the saved ranks, and rank 0 gets the sum.
// - Tensors with a shared tensor of the same name and shape, such as running statistics, become the mean over
//   the saved ranks, on every rank.
// - Elements that gradient exchanges have not sent yet are added up over the saved ranks and divided equally
//   among the ranks that hold the element now, which keeps the sum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradients/gradient_exchange.h"
#include "launch/train/checkpoint/manifest.h"
#include "models/state_copy.h"

namespace lockstep {

// State of gradient exchanges under one name, merged over all saved ranks: "conv1.weight.residual".
struct MergedPiece {
  std::vector<double> sum;   // by element; 0 for elements that no rank had
  std::vector<float> first;  // of the first rank that had it whole, or a count; empty: none
};
using MergedExchange = std::map<std::string, MergedPiece>;

struct RankState {
  StateCopy state;
  MergedExchange exchange;  // empty if `state` has all of it, or if there is none
};

// State for `rank` of `ranks`. With the saved number of ranks, that is its own shard and the shared one.
// Throws DataError, IoError.
RankState state_for(const std::filesystem::path& folder, const Manifest& manifest, int rank, int ranks);

// "conv1.weight.residual" of "conv1.weight.residual[256:512]": the key of MergedExchange.
std::string base_of(const std::string& name);

// The names of the state that the exchanges of all ranks have now.
class ExchangeNames {
 public:
  // Collective over host memory.
  ExchangeNames(std::span<const ExchangeState> mine, Communicator& host);
  // True if a saved piece with this base has a place on some rank. State that is the same on every rank may
  // have been saved under another parameter's name.
  bool contains(const std::string& base) const;

 private:
  std::set<std::string> names_;
};

// Adds the pieces of one saved rank. Names are untrusted: throws DataError if `merged` would get more than
// most_elements elements.
void merge(MergedExchange& merged, std::span<const StateCopy::Tensor> pieces, std::uint64_t most_elements);

// The pieces of all saved ranks. Throws DataError, IoError.
MergedExchange merged_exchange(const std::filesystem::path& folder, const Manifest& manifest);

// Collective over host memory. The tensors with which this rank's exchange starts, named as in `mine`,
// without those that were not saved. Logs the sum before and after.
std::vector<StateCopy::Tensor> deal(const MergedExchange& merged, std::span<const ExchangeState> mine,
                                    Communicator& host);

}  // namespace lockstep
