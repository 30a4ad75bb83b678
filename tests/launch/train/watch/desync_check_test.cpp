// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/desync_check.h"

#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// The messages of `ranks` ranks, where those in `changed` have a different second tensor. A rank that is
// listed twice has a third value.
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
    expect_parts(told, {"step 20", "rank 2", "3 ranks", "fc.weight"});
  for (const std::string& told : told_by_ranks(3, {0}))
    expect_parts(told, {"step 20", "rank 0", "2 ranks", "fc.weight"});
}

TEST(DesyncCheck, WithoutAMajorityAllGroupsAreNamed) {
  for (const int changed : {0, 1})
    for (const std::string& told : told_by_ranks(2, {changed}))
      expect_in_order(told, {"step 20", "rank 0", "rank 1", "fc.weight", "all ranks"});
  for (const std::string& told : told_by_ranks(5, {1, 2, 3, 4, 3, 4}))
    expect_in_order(told, {"rank 0", "ranks 1, 2", "ranks 3, 4", "fc.weight", "all ranks"});
}

TEST(DesyncCheck, EqualRanksReportNothing) {
  for (const std::string& told : told_by_ranks(3, {})) EXPECT_EQ(told, "");
}

}  // namespace
}  // namespace lockstep
