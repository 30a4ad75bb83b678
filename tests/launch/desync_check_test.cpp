// SPDX-License-Identifier: Apache-2.0
#include "launch/desync_check.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

// The messages of `ranks` ranks, where those in `changed` have a different second tensor.
std::vector<std::string> told_by_ranks(int ranks, const std::vector<int>& changed) {
  return try_thread_ranks(ranks, [&](Communicator& host) {
    std::vector<TensorHash> hashes = {{"conv1.weight", 1}, {"fc.weight", 2}, {"fc.bias", 3}};
    for (const int rank : changed)
      if (rank == host.rank()) hashes[1].hash += 7;
    require_same_tensors(host, hashes, "after step 20");
  });
}

TEST(DesyncCheck, NamesTheRankThatDiffersFromMostAndTheFirstTensor) {
  for (const std::string& told : told_by_ranks(4, {2}))
    EXPECT_EQ(
        told.find("after step 20 rank 2 has other parameters than the other 3 ranks, first in fc.weight: "),
        0u)
        << told;
  for (const std::string& told : told_by_ranks(3, {0}))
    EXPECT_EQ(
        told.find("after step 20 rank 0 has other parameters than the other 2 ranks, first in fc.weight: "),
        0u)
        << told;
}

TEST(DesyncCheck, OfTwoRanksRankZeroCounts) {
  for (const int changed : {0, 1})
    for (const std::string& told : told_by_ranks(2, {changed}))
      EXPECT_EQ(told.find("after step 20 rank 1 has other parameters than "), 0u) << told;
}

TEST(DesyncCheck, SaysNothingWhereAllAreTheSame) {
  for (const std::string& told : told_by_ranks(3, {})) EXPECT_EQ(told, "");
}

}  // namespace
}  // namespace lockstep
