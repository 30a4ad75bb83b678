// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/more_ranks.h"

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr TrainedEpoch kTrainedEpoch{
    .busy = 0.95, .samples_per_second = 1000, .steps = 10, .seconds = 10, .backward = 6};

TEST(MoreRanks, AreNotProposedForAnIdleDevice) {
  TrainedEpoch epoch = kTrainedEpoch;
  epoch.busy = 0.89;
  EXPECT_FALSE(more_ranks(epoch, {}));
}

TEST(MoreRanks, DoubleTheRateOfOneRankAtMost) {
  const auto more = more_ranks(kTrainedEpoch, {.cores = 2, .gradient_bytes = 3e6});
  ASSERT_TRUE(more);
  EXPECT_EQ(more->ranks, 2);
  EXPECT_EQ(more->samples_per_second, 2000);
  expect_parts(more->text, {"2 ranks", "cores", "2000 samples/s", "3 MB", "5 MB/s"});
  EXPECT_EQ(more->text.find("nodes"), std::string::npos) << "this node has enough cores: " << more->text;
  expect_parts(more_ranks(kTrainedEpoch, {.on_gpu = true})->text, {"2 ranks", "GPU"});
  TrainedEpoch accumulates = kTrainedEpoch;
  accumulates.accumulation = 6;
  expect_parts(more_ranks(accumulates, {.cores = 2, .gradient_bytes = 3e6})->text, {"30 MB/s", "100 ms"});
}

// One bucket that is final when backward ends. Its sum is completely exposed, and on a ring of 4 ranks takes
// half as long again as with 2.
TEST(MoreRanks, IncludeTheCostOfALongerRing) {
  EpochCommunication communication;
  communication.mine.steps = 10;
  communication.mine.backward = 6;
  communication.mine.exposed = 1;
  communication.mine.buckets.resize(1);
  communication.mine.buckets[0].wire = 1;
  communication.mine.buckets[0].exposed = 1;
  communication.bucket_bytes = {4e6};
  communication.by_rank.resize(2);
  TrainedEpoch epoch = kTrainedEpoch;
  epoch.communication = &communication;
  const auto more = more_ranks(epoch, {.ranks = 2, .local_ranks = 2, .cores = 2});
  ASSERT_TRUE(more);
  EXPECT_EQ(more->ranks, 4);
  EXPECT_NEAR(more->samples_per_second, 2000 * 1 / 1.05, 1);
  expect_parts(more->text, {"4 ranks", "nodes"});
  EXPECT_FALSE(more_ranks(kTrainedEpoch, {.ranks = 2})) << "the communication of these ranks is unknown";
}

}  // namespace
}  // namespace lockstep
