// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/gradient_exchange.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "tests/comm/agreed_message.h"
#include "tests/comm/bucket_parameters.h"
#include "tests/comm/keeps_its_share.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTensorSizes[] = {300, 7, 1000, 16, 450, 33, 5, 128, 1};
constexpr BucketOptions kDenseBuckets{.first_bytes = 1024, .middle_bytes = 4096, .last_bytes = 512};
constexpr BucketOptions kShareBuckets{
    .first_bytes = 1024, .middle_bytes = 4096, .last_bytes = 512, .exchange = {.kind = &kKeepsItsShare}};

float gradient(int rank, std::int64_t element) { return static_cast<float>((element * 7 + rank * 13) % 101); }

// Sets this rank's gradients in the whole arena.
void fill(GradientBuckets& buckets, int rank) {
  const std::span<float> arena = buckets.gradients()[0].as<float>();
  for (std::size_t i = 0; i < arena.size(); ++i) arena[i] = gradient(rank, static_cast<std::int64_t>(i));
}

// Runs one pass with these gradients.
void exchange(GradientBuckets& buckets, int rank) {
  Stream stream(Device{}, StreamUse::compute);
  fill(buckets, rank);
  buckets.begin(stream);
  for (std::size_t i = 0; i < std::size(kTensorSizes); ++i) buckets.gradient_ready(i);
  buckets.wait(stream);
}

TEST(GradientExchange, MayReduceOnlyTheOwnShareOfEachRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_thread_ranks(ranks, [ranks](Communicator& communicator) {
      std::vector<Parameter> parameters = parameters_of(kTensorSizes);
      GradientBuckets buckets(parameters, communicator, kShareBuckets);
      const int rank = communicator.rank();
      exchange(buckets, rank);
      const std::span<const float> arena = buckets.gradients()[0].as<float>();
      for (const Bucket& bucket : buckets.buckets()) {
        const ElementRange share = bucket.share_of(rank), rest = buckets.plan().rest_of(bucket);
        for (std::int64_t i = bucket.begin; i < bucket.end; ++i) {
          float expected = gradient(rank, i);
          if ((i >= share.begin && i < share.end) || i >= rest.begin) {
            expected = 0;
            for (int other = 0; other < ranks; ++other) expected += gradient(other, i);
          }
          CHECK(arena[static_cast<std::size_t>(i)] == expected, "element {} of rank {}", i, rank);
        }
      }
    });
  }
}

// The communicator's log shows the bucket of each collective, whatever collectives an exchange uses.
TEST(GradientExchange, TheLogNamesTheBucketOfEachCollective) {
  run_thread_ranks(3, [](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kTensorSizes);
    std::array<std::uint64_t, 2> sent = {};
    for (std::size_t i = 0; i < 2; ++i) {
      GradientBuckets buckets(parameters, communicator, i == 0 ? kDenseBuckets : kShareBuckets);
      communicator.stream().synchronize();
      const Traffic before = communicator.traffic();
      const std::uint64_t already = communicator.log().read().back().collective.sequence;
      exchange(buckets, communicator.rank());
      std::set<std::int32_t> exchanged;
      for (const CollectiveRecord& record : communicator.log().read()) {
        if (record.collective.sequence <= already) continue;
        exchanged.insert(record.collective.purpose.bucket);
        sent[i] += record.sent_bytes;
        CHECK(record.moments.final_ns > 0 && record.moments.final_ns <= record.moments.enqueued_ns);
      }
      CHECK(exchanged.size() == buckets.buckets().size() && *exchanged.begin() == 0);
      CHECK(sent[i] == communicator.traffic().sent_bytes - before.sent_bytes);
    }
    CHECK(sent[1] > 0 && sent[1] < sent[0], "{} and {} bytes", sent[0], sent[1]);
  });
}

// Buckets one by one, in an order other than the plan's: each result is ready after its wait, with the same
// bits as in one exchange.
TEST(GradientExchange, SendsBucketsInTheGivenOrderAndWaitsForEachAlone) {
  run_thread_ranks(3, [](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kTensorSizes), others = parameters_of(kTensorSizes);
    BucketOptions options = kDenseBuckets;
    GradientBuckets together(others, communicator, options);
    options.one_by_one = true;
    GradientBuckets buckets(parameters, communicator, options);
    const std::size_t count = buckets.buckets().size();
    CHECK(count > 2);
    exchange(together, communicator.rank());
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < count; ++i) order.push_back((i * (count - 1) + 1) % count);
    buckets.set_order(order);
    EXPECT_FALSE(message_of([&] { buckets.set_order(std::vector<std::size_t>(count, 0)); }).empty());
    communicator.stream().synchronize();
    const std::uint64_t already = communicator.log().newest();
    Stream stream(Device{}, StreamUse::compute);
    fill(buckets, communicator.rank());
    buckets.begin(stream);
    for (std::size_t i = 0; i < parameters.size(); ++i) buckets.gradient_ready(i);
    for (const std::size_t bucket : order) {
      buckets.wait_for(stream, bucket);
      const FlatRange& sums = buckets.bucket_gradients()[bucket];
      const auto expected = together.bucket_gradients()[bucket].as<float>();
      CHECK(std::ranges::equal(sums.as<float>(), expected), "bucket {}", bucket);
    }
    buckets.wait(stream);
    std::vector<std::size_t> left;
    for (const CollectiveRecord& record : communicator.log().read()) {
      const auto bucket = static_cast<std::size_t>(record.collective.purpose.bucket);
      if (record.collective.sequence > already && (left.empty() || left.back() != bucket))
        left.push_back(bucket);
    }
    CHECK(left == order);
  });
}

// Also without overlap, when gradients wait for the end of backward.
TEST(GradientExchange, TheLogRecordsWhenGradientsWereFinalNotWhenTheyWereSent) {
  run_thread_ranks(2, [](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kTensorSizes);
    BucketOptions options = kDenseBuckets;
    options.overlap = false;
    GradientBuckets buckets(parameters, communicator, options);
    CHECK(buckets.buckets().size() > 1);
    Stream stream(Device{}, StreamUse::compute);
    buckets.begin(stream);
    std::vector<std::int64_t> final_by;
    for (const Bucket& bucket : buckets.buckets()) {
      for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) buckets.gradient_ready(i);
      final_by.push_back(now_ns());
    }
    buckets.wait(stream);
    communicator.stream().synchronize();
    for (const CollectiveRecord& record : communicator.log().read()) {
      const std::int32_t bucket = record.collective.purpose.bucket;
      if (bucket < 0) continue;
      CHECK(record.moments.final_ns <= final_by[static_cast<std::size_t>(bucket)]);
      CHECK(record.moments.enqueued_ns >= final_by.back());
    }
    CHECK(communicator.log().read().back().collective.purpose.bucket + 1 == std::ssize(final_by));
  });
}

// If sums are equal on all ranks, so are their checks, and nothing is sent. If results differ, a rank with a
// value that is not finite decides for all.
TEST(GradientExchange, RanksAgreeOnFiniteGradientsWhenTheirChecksDiffer) {
  for (const int unlucky : {-1, 0, 2}) {
    run_thread_ranks(3, [unlucky](Communicator& communicator) {
      std::vector<Parameter> parameters = parameters_of(kTensorSizes);
      Stream stream(Device{}, StreamUse::compute);
      for (const bool dense : {true, false}) {
        GradientBuckets buckets(parameters, communicator, dense ? kDenseBuckets : kShareBuckets);
        exchange(buckets, communicator.rank());
        const std::int32_t mine = communicator.rank() == unlucky ? 0 : 1;
        std::int32_t finite = mine;
        const std::uint64_t before = communicator.traffic().operations;
        buckets.agree_finite(stream, &finite);
        CHECK(finite == (dense         ? mine
                         : unlucky < 0 ? 1
                                       : 0),
              "rank {} found {}", communicator.rank(), finite);
        CHECK(communicator.traffic().operations == before + (dense ? 0 : 1));
      }
    });
  }
}

TEST(GradientExchange, ListsItsStateAndCountsOnlyAppliedSteps) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of(kTensorSizes);
  BucketOptions options = kShareBuckets;
  options.exchange.settings = {{.option = "first_step", .value = 5}};
  GradientBuckets buckets(parameters, *communicator, options);
  EXPECT_EQ(buckets.memory_bytes(), buckets.plan().bytes() + sizeof(float));
  const std::vector<ExchangeState> state = buckets.exchange().state();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state[0].name, "step");
  const float& step = state[0].memory.as<float>()[0];
  EXPECT_EQ(step, 5);
  Stream stream(Device{}, StreamUse::compute);
  for (std::int32_t finite : {1, 0, 1}) {
    exchange(buckets, 0);
    buckets.agree_finite(stream, &finite);
  }
  EXPECT_EQ(step, 7);
}

TEST(GradientExchange, DenseSumsHaveNoStateAndNeedNoAgreement) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of(kTensorSizes);
  GradientBuckets buckets(parameters, *communicator, {});
  EXPECT_TRUE(buckets.exchange().same_on_every_rank());
  EXPECT_TRUE(buckets.exchange().state().empty());
  EXPECT_EQ(buckets.memory_bytes(), buckets.plan().bytes());
}

TEST(GradientExchange, EveryRankReportsDifferingChoices) {
  const BucketOptions others[] = {
      kDenseBuckets,
      {.first_bytes = 1024,
       .middle_bytes = 4096,
       .last_bytes = 512,
       .exchange = {.kind = &kKeepsItsShare, .settings = {{.option = "first_step", .value = 5}}}}};
  for (const BucketOptions& other : others) {
    const std::string error = agreed_message(3, exit_code::config, [&](Communicator& communicator) {
      std::vector<Parameter> parameters = parameters_of(kTensorSizes);
      const GradientBuckets buckets(parameters, communicator,
                                    communicator.rank() == 1 ? other : kShareBuckets);
    });
    expect_in_order(error, {"rank 1", "rank 0"});
    EXPECT_EQ(error.find("rank 2"), std::string::npos) << error;
  }
}

// The numbers in the text, ascending.
std::vector<double> sorted_numbers(const std::string& text) {
  std::vector<double> numbers = numbers_named_in(text);
  std::ranges::sort(numbers);
  return numbers;
}

TEST(GradientExchange, SettingsAreCheckedBeforeAllocation) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of({16});
  const auto error_of = [&](const ExchangeKind& kind, const ExchangeSetting& setting) {
    const ExchangeChoice choice{.kind = &kind, .settings = {setting}};
    return message_of([&] { GradientBuckets(parameters, *communicator, {.exchange = choice}); });
  };
  expect_parts(error_of(kKeepsItsShare, {.option = "rank", .value = 2}),
               {"\"share\"", "\"rank\"", "first_step"});
  expect_parts(error_of(kDenseSum, {.option = "rank", .value = 2}), {"\"none\"", "\"rank\""});
  // The given value, the range, and the nearest value in it.
  const std::string low = error_of(kKeepsItsShare, {.option = "first_step", .value = -1});
  expect_parts(low, {"\"share\"", "first_step"});
  EXPECT_EQ(sorted_numbers(low), (std::vector<double>{-1, 0, 0, 100})) << low;
  const std::string high = error_of(kKeepsItsShare, {.option = "first_step", .value = 101});
  EXPECT_EQ(sorted_numbers(high), (std::vector<double>{0, 100, 100, 101})) << high;
}

TEST(Exchanges, AreFoundByTheirNames) {
  std::set<std::string_view> names;
  for (const ExchangeKind* kind : exchange_kinds()) {
    EXPECT_EQ(&exchange_kind(kind->name), kind);
    EXPECT_FALSE(kind->meaning.empty()) << kind->name;
    EXPECT_TRUE(names.insert(kind->name).second) << kind->name;
  }
  const std::string error = message_of([] { exchange_kind("sparse"); });
  expect_parts(error, {"\"sparse\""});
  for (const std::string_view name : names) expect_parts(error, {std::string(name)});
}

}  // namespace
}  // namespace lockstep
