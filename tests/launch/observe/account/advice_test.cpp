// SPDX-License-Identifier: Apache-2.0
//
// Ledgers of simulated steps of 100 ms; the last 40 ms are backward before compute waits.
#include "launch/observe/account/advice.h"

#include <regex>

#include <gtest/gtest.h>

#include "launch/train/clock/wait_model.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr double kStep = 0.1;
constexpr double kBackward = 0.04;

// Gradients become final at even intervals over backward. The wire has `bytes_per_second`.
EpochCommunication steady(const std::vector<double>& bucket_bytes, double bytes_per_second, int ranks = 2) {
  EpochCommunication epoch;
  epoch.bucket_bytes = bucket_bytes;
  epoch.mine.steps = 1;
  epoch.mine.backward = kBackward;
  double all = 0, bytes = 0, free = -kBackward;
  for (const double bucket : bucket_bytes) all += bucket;
  for (const double bucket : bucket_bytes) {
    bytes += bucket;
    const double lead = kBackward * (1 - bytes / all), wire = bucket / bytes_per_second;
    const double begin = std::max(free, -lead);
    free = begin + wire;
    const double exposed = std::max(0.0, free) - std::max(0.0, begin);
    epoch.mine.buckets.push_back({.lead = lead, .wire = wire, .exposed = exposed, .hidden = wire - exposed});
    epoch.mine.exposed += exposed;
    epoch.mine.exposed_wire += exposed;
    epoch.mine.hidden += wire - exposed;
  }
  epoch.sent_bytes = all;
  epoch.by_rank.assign(static_cast<std::size_t>(ranks),
                       {.exposed = epoch.mine.exposed, .hidden = epoch.mine.hidden});
  return epoch;
}

AdviceContext context(int nodes = 2) {
  return {.step_seconds = kStep,
          .samples_per_second = 1000,
          .nodes = nodes,
          .threads = 2,
          .buckets = {{"[1, 1, 1]", {1e6, 1e6, 1e6, 1e6}},
                      {"[2, 2, 0.1]", {2e6, 1.9e6, 0.1e6}},
                      {"[1, 1, 0.1]", {1e6, 1e6, 1e6, 0.9e6, 0.1e6}}}};
}

// Codecs of four buckets of 1 MB.
AdviceContext with_codecs(double codec_seconds) {
  AdviceContext with = context();
  with.codecs = [=] {
    std::vector<CodecAdvice> codecs = {{.codec = "half"}, {.codec = "tenth"}};
    for (int bucket = 0; bucket < 4; ++bucket) {
      codecs[0].travel.push_back({.bytes = 5e5, .round_trips = 1});
      codecs[1].travel.push_back({.bytes = 1e5, .round_trips = 1, .codec_seconds = codec_seconds});
    }
    return codecs;
  };
  return with;
}

void add_late_rank(EpochCommunication& epoch, int late_rank, double late) {
  for (std::size_t rank = 0; rank < epoch.by_rank.size(); ++rank) {
    if (static_cast<int>(rank) == late_rank) continue;
    epoch.by_rank[rank].waited += late;
    epoch.by_rank[rank].exposed += late;
  }
  if (late_rank == 0) return;
  epoch.mine.buckets[0].late += late;
  epoch.mine.exposed += late;
  epoch.mine.exposed_late += late;
}

TEST(Advice, IsAbsentIfLittleIsExposed) {
  EXPECT_FALSE(advise(steady({1e6, 1e6, 1e6, 1e6}, 1e9), context()));
  EXPECT_FALSE(advise(EpochCommunication(), context())) << "one rank";
}

// 50 ms are exposed. Twice the work for each exchange saves half of them; a forward pass of 30 ms saves 30
// ms.
TEST(Advice, ProposesCrossBarrierIfItHidesMost) {
  AdviceContext crossing = context();
  crossing.forward_seconds = 0.03;
  const EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 5e7);
  EXPECT_EQ(advise(epoch, crossing)->key, "train.accumulation") << "crossing the barrier is not possible";
  crossing.may_cross = true;
  const std::optional<Advice> advice = advise(epoch, crossing);
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->key, "comm.cross_barrier");
  EXPECT_EQ(advice->value, "true");
  EXPECT_NEAR(advice->samples_per_second, 1000 * kStep / (kStep - 0.03), 1);
  crossing.forward_seconds = 0.02;
  EXPECT_EQ(advise(epoch, crossing)->key, "train.accumulation");
}

// 4 MB take 0.4 s, a tenth of them 0.04 s, of which one bucket's share is exposed after backward.
TEST(Advice, ProposesTheCodecThatGainsMost) {
  const EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e7);
  AdviceContext quick = with_codecs(0);
  quick.step_seconds = 0.06 + kBackward + epoch.mine.exposed;
  const auto advice = advise(epoch, quick);
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "slow_wire");
  EXPECT_EQ(advice->key, "comm.codec");
  EXPECT_EQ(advice->value, "tenth");
  EXPECT_TRUE(std::regex_search(advice->text, std::regex(R"(comm\.codec=tenth\D+10\b)"))) << advice->text;
  EXPECT_NEAR(advice->samples_per_second, 1000 * quick.step_seconds / (0.06 + kBackward + 0.01), 20);
  AdviceContext slow = with_codecs(0.3);
  slow.step_seconds = quick.step_seconds;
  EXPECT_EQ(advise(epoch, slow)->value, "half") << "encoding takes longer than the codec saves";
  slow.codecs = nullptr;
  EXPECT_EQ(advise(epoch, slow)->key, "train.accumulation");
}

TEST(Advice, NamesALateRank) {
  for (const int late : {0, 2}) {
    EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e9, 4);
    add_late_rank(epoch, late, 0.02);
    const auto advice = advise(epoch, context());
    ASSERT_TRUE(advice);
    EXPECT_EQ(advice->cause, "late_rank");
    EXPECT_EQ(advice->key, "");
    expect_parts(advice->text, {"rank " + std::to_string(late), "20.0 ms", "20 %"});
    EXPECT_NEAR(advice->samples_per_second, 1250, 1);
  }
}

TEST(Advice, WaitsBeyondAStepCountAsOneStep) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e9);
  add_late_rank(epoch, 0, 2 * kStep);
  for (const double starved : {0.0, 2 * kStep}) {
    epoch.by_rank[0].starved = starved;
    const auto advice = advise(epoch, context());
    ASSERT_TRUE(advice);
    EXPECT_EQ(advice->cause, starved > 0 ? "no_core" : "late_rank");
    expect_parts(advice->text, {"100.0 ms", "100 %"});
    EXPECT_NEAR(advice->samples_per_second, 20000, 1) << "at most 20 times the rate";
  }
}

TEST(Advice, NamesASlowWireWithItsRate) {
  const EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 50e6);  // 80 ms
  auto told = context();
  const auto advice = advise(epoch, told);
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "slow_wire");
  expect_parts(advice->text, {"80.0 ms", "50.0 MB/s"});
  EXPECT_EQ(advice->key, "train.accumulation");
  EXPECT_EQ(advice->value, "2");
  EXPECT_NEAR(advice->samples_per_second, 1000 * kStep / (kStep - epoch.mine.exposed / 2), 1);
  told.halves_are_fast = true;
  const auto half = advise(epoch, told);
  EXPECT_EQ(half->key, "train.precision") << half->text;
  EXPECT_GT(half->samples_per_second, advice->samples_per_second);
  EXPECT_EQ(advise(steady({1e6, 1e6, 1e6, 1e6}, 50e6, 10), told)->key, "train.accumulation")
      << "bf16 of ten ranks is sent as fp32";
  told.sum_type = SumType::f32;
  EXPECT_EQ(advise(epoch, told)->key, "train.accumulation");
}

TEST(Advice, DatasetLimitsTheAccumulation) {
  const EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 50e6);
  auto small = context();
  small.accumulation = 2;
  small.most_accumulation = 4;
  EXPECT_EQ(advise(epoch, small)->value, "4");
  small.most_accumulation = 3;
  const auto advice = advise(epoch, small);
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "slow_wire");
  EXPECT_EQ(advice->key, "") << advice->text;
  expect_parts(advice->text, {"no setting", "samples"});
  EXPECT_NEAR(advice->samples_per_second, 1000 * kStep / (kStep - epoch.mine.exposed), 1)
      << "without the waits";
}

// Rank 1 computes 20 ms longer, also for each of two micro-batches: only the wire's 50 ms are halved.
TEST(Advice, EstimatesThatMoreWorkKeepsALateRankLate) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 50e6);
  const double wire = epoch.mine.exposed;
  add_late_rank(epoch, 1, 0.02);
  const auto advice = advise(epoch, context());
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->key, "train.accumulation");
  EXPECT_NEAR(advice->samples_per_second, 1000 * kStep / (kStep - wire / 2), 1);
}

TEST(Advice, NamesALastBucketThatIsTooLarge) {
  const EpochCommunication epoch = steady({1e6, 3e6}, 150e6);
  const auto advice = advise(epoch, context());
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "last_bucket");
  EXPECT_EQ(advice->key, "comm.bucket_mib");
  EXPECT_EQ(advice->value, "[1, 1, 0.1]");
  EXPECT_GT(advice->samples_per_second, 1100);
}

TEST(Advice, NamesBucketsThatAreSentLate) {
  const EpochCommunication epoch = steady({3.4e6, 0.3e6, 0.3e6}, 90e6);
  const auto advice = advise(epoch, context());
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "first_bucket") << advice->text;
  EXPECT_EQ(advice->key, "comm.bucket_mib");
}

TEST(Advice, NamesCommunicationWithoutACore) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e9);
  epoch.mine.exposed += 0.02;
  epoch.mine.exposed_starved += 0.02;
  for (RankCommunication& rank : epoch.by_rank) rank.exposed += 0.02;
  const auto advice = advise(epoch, context());
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "no_core");
  EXPECT_EQ(advice->key, "train.threads");
  EXPECT_EQ(advice->value, "1");
  auto one_thread = context();
  one_thread.threads = 1;
  EXPECT_EQ(advise(epoch, one_thread)->key, "") << "no thread can be removed";
  auto on_gpu = context();
  on_gpu.on_gpu = true;
  EXPECT_EQ(advise(epoch, on_gpu)->key, "") << "compute threads take no cores";
}

// Within a node, an apparently slow wire is a thread without a core, if the system reports that.
TEST(Advice, SlowWireWithinANodeMayBeAMissingCore) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 50e6);
  EXPECT_EQ(advise(epoch, context(1))->cause, "slow_wire");
  epoch.by_rank[0].no_core = 0.07;
  EXPECT_EQ(advise(epoch, context(1))->cause, "no_core");
  EXPECT_EQ(advise(epoch, context(2))->cause, "slow_wire");
}

// Both ranks wait equally long for each other.
TEST(Advice, AlternatingLateRanksOfANodeShareCores) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e9);
  epoch.mine.buckets[0].late += 0.02;
  epoch.mine.exposed += 0.02;
  epoch.mine.exposed_late += 0.02;
  for (RankCommunication& rank : epoch.by_rank) {
    rank.waited += 0.02;
    rank.exposed += 0.02;
  }
  EXPECT_EQ(advise(epoch, context(1))->cause, "no_core");
}

// A rank whose communication thread gets no core makes its peers wait.
TEST(Advice, LateRankMayLackACore) {
  EpochCommunication epoch = steady({1e6, 1e6, 1e6, 1e6}, 1e9);
  add_late_rank(epoch, 1, 0.02);
  epoch.by_rank[1].starved = 0.018;
  EXPECT_EQ(advise(epoch, context())->cause, "no_core");
}

TEST(WaitModel, RecoversTheSimulatedConstants) {
  const std::vector<double> bytes = {1e6, 3e6, 2e6};
  EpochCommunication epoch = steady(bytes, 100e6);
  for (BucketSums& bucket : epoch.mine.buckets) bucket.wire += 1e-3;  // latency
  const WaitModel model(epoch.mine, bytes, 0);
  const double one = model.exposed(std::vector<double>{6e6}), many = model.exposed(bytes);
  EXPECT_NEAR(one, 61e-3, 1e-9);
  EXPECT_LT(many, one);
  EXPECT_NEAR(model.exposed(std::vector<double>{6e6}, 2), 31e-3, 1e-9);
  EXPECT_NEAR(model.exposed(std::vector<double>{1.5e6, 4.5e6}, 0.5), 31e-3 + 91e-3 - 0.75 * kBackward, 1e-9)
      << "the first bucket is final between two known points";
}

// One bucket shows no latency, but allows a prediction.
TEST(WaitModel, FitsASingleBucket) {
  const EpochCommunication epoch = steady({4e6}, 100e6);
  const WaitModel model(epoch.mine, epoch.bucket_bytes, 0);
  EXPECT_NEAR(model.exposed(epoch.bucket_bytes), epoch.mine.exposed, 1e-9);
  const auto advice = advise(epoch, context());
  ASSERT_TRUE(advice);
  EXPECT_EQ(advice->cause, "last_bucket");
}

}  // namespace
}  // namespace lockstep
