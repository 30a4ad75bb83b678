// SPDX-License-Identifier: Apache-2.0
//
// Codec choices on simulated links, steps and codecs.
#include "launch/train/trials/codec_choice.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr double kPass = 0.1;

// Three codecs: dense, one that sends half, and one that sends a hundredth.
std::vector<std::vector<BucketTravel>> ways_of(const std::vector<double>& bytes, double half_seconds = 0,
                                               double least_seconds = 0) {
  std::vector<std::vector<BucketTravel>> ways(3);
  for (const double each : bytes) {
    ways[0].push_back({.bytes = each, .round_trips = 1});
    ways[1].push_back({.bytes = each / 2, .round_trips = 1, .codec_seconds = half_seconds * each});
    ways[2].push_back({.bytes = each / 100, .round_trips = 3, .codec_seconds = least_seconds * each});
  }
  return ways;
}

// Gradients become final at even intervals over backward; the link has this latency.
WaitModel model_of(const std::vector<double>& bytes, double bytes_per_second, double latency = 1e-4) {
  LedgerSums sums;
  sums.steps = 1;
  sums.backward = kPass;
  double done = 0, all = 0;
  for (const double each : bytes) all += each;
  for (const double each : bytes) {
    done += each;
    sums.buckets.push_back({.lead = kPass * (1 - done / all), .wire = latency + each / bytes_per_second});
  }
  return WaitModel(sums, bytes, 0);
}

// 3 ms are exposed.
TEST(CodecChoice, HiddenBucketsStayDense) {
  const std::vector<double> bytes = {4e6, 4e6, 1e5};
  const CodecChoice choice = choose_codecs(model_of(bytes, 1e9), ways_of(bytes), 5e-3);
  EXPECT_EQ(choice.by_bucket, (std::vector<int>{0, 0, 0}));
}

TEST(CodecChoice, SlowLinkTakesTheSmallestCodec) {
  const std::vector<double> bytes = {4e6, 5e6, 3e6};
  const WaitModel model = model_of(bytes, 1e7);
  const CodecChoice choice = choose_codecs(model, ways_of(bytes), 1e-3);
  EXPECT_EQ(choice.by_bucket, (std::vector<int>{2, 2, 2}));
  // Exposed after backward: the last bucket's 3 messages and its remaining bytes.
  EXPECT_NEAR(choice.seconds, kPass + 3e-4 + 3e6 / 100 / 1e7, 2e-3);
}

// Only the last buckets are exposed. Earlier ones are hidden and stay dense.
TEST(CodecChoice, IsMadePerBucket) {
  const std::vector<double> bytes = {2e6, 1e5, 4e6};
  const CodecChoice choice = choose_codecs(model_of(bytes, 1e8), ways_of(bytes), 1e-3);
  EXPECT_EQ(choice.by_bucket[0], 0);
  EXPECT_EQ(choice.by_bucket[1], 0);
  EXPECT_EQ(choice.by_bucket[2], 2);
}

TEST(CodecChoice, IncludesTheTimeOfEncoding) {
  const std::vector<double> bytes = {4e6, 5e6, 3e6};
  const WaitModel model = model_of(bytes, 5e7);
  // The last codec costs more than it saves; the middle one pays off.
  EXPECT_EQ(choose_codecs(model, ways_of(bytes, 0, 1.0 / 2e7), 1e-4).by_bucket, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(choose_codecs(model, ways_of(bytes, 1.0 / 2e7, 1.0 / 2e7), 1e-4).by_bucket,
            (std::vector<int>{0, 0, 0}));
}

// Hidden messages are not free if the compute cores copy them: sending less is faster then.
TEST(CodecChoice, IncludesTheComputeLostToMessages) {
  const std::vector<double> early = {2e6, 4e6};
  WaitModel hidden = model_of(early, 1e9 / 10);
  const CodecChoice free = choose_codecs(hidden, ways_of(early), 1e-3);
  EXPECT_EQ(free.by_bucket[0], 0);
  hidden.take_from_compute(0.5);
  const CodecChoice taken = choose_codecs(hidden, ways_of(early), 1e-3);
  EXPECT_EQ(taken.by_bucket[0], 2);
  EXPECT_GE(taken.seconds, free.seconds);
}

TEST(CodecChoice, PrefersTheLessLossyOfEqualCodecs) {
  const std::vector<double> bytes = {1e6, 1e6};
  const WaitModel model = model_of(bytes, 4e7);
  const auto ways = ways_of(bytes);
  const CodecChoice fastest = choose_codecs(model, ways, 0);
  const CodecChoice gentle = choose_codecs(model, ways, 0.02);
  EXPECT_EQ(fastest.by_bucket[1], 2);
  EXPECT_LT(gentle.by_bucket[1], 2);
  EXPECT_LE(gentle.seconds, fastest.seconds + 0.02);
}

}  // namespace
}  // namespace lockstep
