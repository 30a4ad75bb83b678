// SPDX-License-Identifier: Apache-2.0
//
// Codec trials on simulated steps: nothing is sent, and ledgers get simulated moments.
#include "launch/train/trials/codec_trial.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/comm/codec_ranks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kBackwardNs = 100 * kMs;

struct Link {
  double bytes_per_second = 1e9;
  double codec_seconds = 0;        // unforeseen cost of a step in which any codec works
  int stopped_step = -1;           // in this step the link stops for 1 s; -1: none
  std::size_t stopped_bucket = 0;  // while this bucket travels
  std::vector<ExchangeChoice> candidates = {
      {.kind = &kBf16Codec}, {.kind = &kInt8Codec}, steady(kPowerSgdCodec)};
};

struct Found {
  std::vector<int> chosen;              // at the end, by bucket
  std::vector<std::vector<int>> tried;  // every choice, in order
  int steps = 0;                        // until the decision
};

// Backward finishes buckets at even intervals, and they travel one after the other.
double made_up_step(const AutoExchange& exchange, const Link& link, int step, Ledger& ledger) {
  static constexpr std::int64_t kBegin = 1000 * kMs;
  const std::vector<double> free(exchange.choices().size(), 0);
  const std::vector<BucketTravel> travel = exchange.travel(exchange.chosen(), free);
  std::int64_t end = kBegin;
  for (std::size_t bucket = 0; bucket < travel.size(); ++bucket) {
    const auto part = static_cast<std::int64_t>(bucket + 1), all = static_cast<std::int64_t>(travel.size());
    const std::int64_t final = kBegin + kBackwardNs * part / all;
    const std::int64_t begin = std::max(final, end);
    end = begin + static_cast<std::int64_t>(1e9 * travel[bucket].bytes / link.bytes_per_second);
    if (step == link.stopped_step && bucket == link.stopped_bucket) end += 1000 * kMs;
    ledger.add(
        bucket,
        {.final_ns = final, .enqueued_ns = final, .started_ns = begin, .met_ns = begin, .finished_ns = end},
        static_cast<std::uint64_t>(travel[bucket].bytes));
  }
  const std::int64_t waited = kBegin + kBackwardNs, resumed = std::max(end, waited);
  ledger.end_step({.backward_ns = kBegin, .waited_ns = waited, .resumed_ns = resumed});
  const bool codecs = std::ranges::any_of(exchange.chosen(), [](int number) { return number > 0; });
  return 1e-9 * static_cast<double>(kBackwardNs + resumed - waited) + (codecs ? link.codec_seconds : 0);
}

// The result of two ranks on two nodes, equal on both.
Found trial_on(const Link& link) {
  std::vector<Found> found(2);
  run_thread_ranks(
      2,
      [&](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        BucketOptions options = codec_buckets(kAutoCodec);
        options.codecs.candidates = link.candidates;
        GradientBuckets buckets(parameters, communicator, options);
        AutoExchange& exchange = *buckets.exchange().to_choose();
        Ledger ledger(buckets.buckets().size(), nullptr);
        CodecTrial trial(exchange, buckets.buckets(), communicator, Device{}, 0, {});
        Found& mine = found[static_cast<std::size_t>(communicator.rank())];
        constexpr int kMostSteps = 200;
        for (; !trial.decided() && mine.steps < kMostSteps; ++mine.steps) {
          const auto next = trial.step_done(made_up_step(exchange, link, mine.steps, ledger), ledger);
          if (!next) continue;
          exchange.choose(*next);
          mine.tried.push_back(*next);
        }
        CHECK(trial.decided());
        CHECK(!trial.step_done(1, ledger), "a trial follows the decision");
        mine.chosen.assign(exchange.chosen().begin(), exchange.chosen().end());
      },
      std::vector<int>{0, 1});
  EXPECT_EQ(found[0].tried, found[1].tried) << "ranks must choose alike";
  EXPECT_EQ(found[0].steps, found[1].steps);
  return found[0];
}

TEST(CodecTrial, FastLinkTriesNoCodec) {
  const Found found = trial_on({.bytes_per_second = 1e9});
  EXPECT_TRUE(found.tried.empty());
  EXPECT_EQ(std::ranges::count(found.chosen, 0), std::ssize(found.chosen));
  EXPECT_EQ(found.steps, 8) << "2 steps to settle and 6 measured ones";
}

// If the stop counted, the link would seem slow: 1 s for the largest bucket.
TEST(CodecTrial, FastLinkThatStopsOnceTriesNoCodec) {
  const Found found = trial_on({.bytes_per_second = 1e9, .stopped_step = 4, .stopped_bucket = 1});
  EXPECT_TRUE(found.tried.empty());
  EXPECT_EQ(found.steps, 8);
}

// If the stop counted, each message would seem to take long, however short it is: 1 s for the smallest
// bucket.
TEST(CodecTrial, ChoosesCodecsOnASlowLinkThatStopsOnce) {
  const Found found = trial_on({.bytes_per_second = 3e5, .stopped_step = 4, .stopped_bucket = 3});
  EXPECT_GT(*std::ranges::max_element(found.chosen), 0);
}

TEST(CodecTrial, ChoosesCodecsOnASlowLink) {
  const Found found = trial_on({.bytes_per_second = 1e4});
  ASSERT_EQ(found.tried.size(), 1u);
  EXPECT_EQ(found.chosen, found.tried[0]);
  EXPECT_GT(*std::ranges::max_element(found.chosen), 0);
  EXPECT_EQ(found.steps, 16) << "8 more steps with codecs";
}

TEST(CodecTrial, UsesOnlyTheCandidates) {
  const Found found = trial_on({.bytes_per_second = 1e4, .candidates = {{.kind = &kBf16Codec}}});
  EXPECT_EQ(*std::ranges::max_element(found.chosen), 1);
}

// The model does not predict the codecs' cost, but the measured steps show it.
TEST(CodecTrial, ReturnsToDenseIfCodecsDoNotPay) {
  const Found found = trial_on({.bytes_per_second = 1e4, .codec_seconds = 100});
  EXPECT_EQ(std::ranges::count(found.chosen, 0), std::ssize(found.chosen)) << "the decision is dense";
  ASSERT_GE(found.tried.size(), 3u) << "codecs were tried before";
  int most = 4;
  for (const std::vector<int>& tried : found.tried) {
    const int lossiest = *std::ranges::max_element(tried);
    EXPECT_LT(lossiest, most) << "each choice loses less than the previous one";
    most = lossiest;
  }
}

}  // namespace
}  // namespace lockstep
