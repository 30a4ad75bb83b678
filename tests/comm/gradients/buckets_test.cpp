// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/buckets.h"

#include <cmath>
#include <functional>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/random.h"
#include "tests/comm/agreed_message.h"
#include "tests/comm/bucket_parameters.h"
#include "tests/comm/codec_state.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSizes[] = {300, 7, 1000, 16, 16, 450, 33, 5, 128, 1};

// A rank's own gradient in a pass, independent of the buckets.
float gradient(int rank, int pass, std::size_t parameter, std::int64_t element) {
  const Random random(static_cast<std::uint64_t>(1000 * pass + rank), std::uint64_t{parameter});
  return random.normal(static_cast<std::uint64_t>(element));
}

void compute(std::span<const Parameter> parameters, std::size_t index, int rank, int pass) {
  const Parameter& parameter = parameters[index];
  for (std::int64_t i = 0; i < parameter.layout.physical_elements(); ++i)
    set_gradient(parameter, i, gradient(rank, pass, index, i));
}

// For parameters that are all fp32.
std::span<float> all_of(const GradientBuckets& buckets) { return buckets.gradients()[0].as<float>(); }

struct Backward {
  BucketOptions options;
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  int passes = 2;
};

// The bits of all gradients after each pass, on every rank.
std::vector<std::vector<float>> averaged(int ranks, const Backward& backward) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kSizes);
    GradientBuckets buckets(parameters, communicator, backward.options);
    Stream stream(Device{}, StreamUse::compute);
    std::vector<float>& result = results[static_cast<std::size_t>(communicator.rank())];
    for (int pass = 0; pass < backward.passes; ++pass) {
      buckets.begin(stream);
      for (const std::size_t index : backward.order) {
        compute(parameters, index, communicator.rank(), pass);
        buckets.gradient_ready(index);
      }
      buckets.wait(stream);
      const std::span<float> sums = all_of(buckets);
      result.insert(result.end(), sums.begin(), sums.end());
      communicator.barrier();  // the next pass writes
      communicator.stream().synchronize();
    }
  });
  return results;
}

const BucketOptions kOneBucket{.first_bytes = 1 << 20};
const BucketOptions kEachAlone{.first_bytes = 0, .middle_bytes = 0, .last_bytes = 0};
const BucketOptions kSomeBuckets{.first_bytes = 1024, .middle_bytes = 4096, .last_bytes = 512};

class GradientBucketsRanks : public testing::TestWithParam<int> {};

TEST_P(GradientBucketsRanks, SumsOverRanks) {
  const std::vector<Parameter> parameters = parameters_of(kSizes);
  const auto results = averaged(GetParam(), {.options = kSomeBuckets});
  const std::size_t arena = results[0].size() / 2;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      for (std::int64_t i = 0; i < parameters[p].layout.physical_elements(); ++i) {
        double sum = 0;
        double magnitude = 0;
        for (int rank = 0; rank < GetParam(); ++rank) {
          sum += gradient(rank, pass, p, i);
          magnitude += std::abs(gradient(rank, pass, p, i));
        }
        const float got = results[0][arena * static_cast<std::size_t>(pass) +
                                     static_cast<std::size_t>(parameters[p].offset + i)];
        ASSERT_NEAR(got, sum, 1e-6 * magnitude)
            << "pass " << pass << ", " << parameters[p].name << "[" << i << "]";
      }
    }
  }
}

TEST_P(GradientBucketsRanks, NeitherBucketsNorOverlapNorOrderChangeABit) {
  const std::vector<float> expected = averaged(GetParam(), {.options = kOneBucket})[0];
  for (BucketOptions options : {kOneBucket, kEachAlone, kSomeBuckets}) {
    for (const bool overlap : {true, false}) {
      options.overlap = overlap;
      for (const std::vector<std::size_t>& order : {std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                                    {9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
                                                    {3, 1, 4, 0, 5, 9, 2, 6, 8, 7}}) {
        for (const std::vector<float>& result : averaged(GetParam(), {.options = options, .order = order})) {
          EXPECT_TRUE(same_bits(result, expected))
              << "overlap " << overlap << ", first parameter " << order[0];
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientBucketsRanks, testing::Values(1, 2, 3, 4));

// The announcements have a different order on each rank; the buckets are sent in one order.
TEST(GradientBuckets, RanksMayFinishGradientsInDifferentOrders) {
  const std::vector<float> expected = averaged(3, {.options = kOneBucket, .passes = 1})[0];
  run_thread_ranks(3, [&](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kSizes);
    GradientBuckets buckets(parameters, communicator, kEachAlone);
    Stream stream(Device{}, StreamUse::compute);
    buckets.begin(stream);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::size_t index = (3 * i + static_cast<std::size_t>(communicator.rank())) % parameters.size();
      compute(parameters, index, communicator.rank(), 0);
      buckets.gradient_ready(index);
    }
    buckets.wait(stream);
    const std::span<float> sums = all_of(buckets);
    CHECK(same_bits({sums.begin(), sums.end()}, expected));
  });
}

TEST(GradientBuckets, GradientsAreViewsIntoOneArenaThatStartsAtZero) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of(kSizes);
  {
    const GradientBuckets buckets(parameters, *communicator, kSomeBuckets);
    const std::span<float> arena = all_of(buckets);
    EXPECT_EQ(static_cast<std::int64_t>(arena.size()), parameters.back().offset + kLine);
    for (const Parameter& parameter : parameters) {
      EXPECT_EQ(parameter.gradient, arena.data() + parameter.offset) << parameter.name;
    }
    for (const float value : arena) ASSERT_EQ(value, 0.0f);
  }
  for (const Parameter& parameter : parameters) EXPECT_EQ(parameter.gradient, nullptr) << parameter.name;
}

// Sums of 16-bit gradients are added in fp32 and rounded once.
TEST(GradientBuckets, HalfGradientsAreSummedInHalfBuckets) {
  run_thread_ranks(3, [&](Communicator& communicator) {
    std::vector<Parameter> parameters = parameters_of(kSizes, 6);
    GradientBuckets buckets(parameters, communicator, kSomeBuckets);
    CHECK(buckets.gradients().size() == 2);
    CHECK(buckets.gradients()[0].type == DType::f16 && buckets.gradients()[1].type == DType::f32);
    CHECK(buckets.memory_bytes() == buckets.gradients()[0].bytes() + buckets.gradients()[1].bytes());
    Stream stream(Device{}, StreamUse::compute);
    buckets.begin(stream);
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      compute(parameters, index, communicator.rank(), 0);
      buckets.gradient_ready(index);
    }
    buckets.wait(stream);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      for (std::int64_t i = 0; i < kSizes[p]; ++i) {
        float expected = 0;
        for (int rank = 0; rank < 3; ++rank) {
          const float mine = gradient(rank, 0, p, i);
          expected += p < 6 ? static_cast<float>(Half(mine)) : mine;
        }
        if (p < 6) {
          ASSERT_EQ(static_cast<const Half*>(parameters[p].gradient)[i].bits, Half(expected).bits) << p;
        } else {
          ASSERT_EQ(static_cast<const float*>(parameters[p].gradient)[i], expected) << p;
        }
      }
    }
  });
}

TEST(GradientBuckets, NoParametersGiveNoBuckets) {
  run_thread_ranks(2, [](Communicator& communicator) {
    std::vector<Parameter> none;
    GradientBuckets buckets(none, communicator, {});
    Stream stream(Device{}, StreamUse::compute);
    buckets.begin(stream);
    buckets.wait(stream);
    CHECK(buckets.buckets().empty() && buckets.gradients().empty());
  });
}

bool names(const std::string& message, const std::string& what) {
  return std::regex_search(message, std::regex("\\b" + what + "\\b"));
}

TEST(GradientBuckets, AMissingGradientIsNamed) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  for (const bool overlap : {true, false}) {
    std::vector<Parameter> parameters = parameters_of({16, 16, 16, 16});
    GradientBuckets buckets(parameters, *communicator,
                            {.first_bytes = 0, .middle_bytes = 0, .last_bytes = 0, .overlap = overlap});
    Stream stream(Device{}, StreamUse::compute);
    buckets.begin(stream);
    buckets.gradient_ready(0);
    buckets.gradient_ready(3);
    const std::string error = message_of([&] { buckets.wait(stream); });
    EXPECT_TRUE(names(error, "p1")) << error;
  }
}

TEST(GradientBuckets, AGradientAnnouncedTwiceIsNamed) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of({16, 16, 16});
  GradientBuckets buckets(parameters, *communicator, kEachAlone);
  Stream stream(Device{}, StreamUse::compute);
  buckets.begin(stream);
  buckets.gradient_ready(2);
  const std::string error = message_of([&] { buckets.gradient_ready(2); });
  EXPECT_TRUE(names(error, "p2")) << error;

  buckets.begin(stream);  // a new pass: one more announcement is valid
  for (const std::size_t index : {2, 0, 1}) buckets.gradient_ready(index);
  buckets.wait(stream);
}

TEST(GradientBuckets, CallsOutsideAPassAreErrors) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = parameters_of({16});
  GradientBuckets buckets(parameters, *communicator, {});
  Stream stream(Device{}, StreamUse::compute);
  Stream other(Device{}, StreamUse::compute);
  EXPECT_THROW(buckets.gradient_ready(0), Error);
  EXPECT_THROW(buckets.wait(stream), Error);
  buckets.begin(stream);
  EXPECT_THROW(buckets.gradient_ready(1), Error);
  buckets.gradient_ready(0);
  EXPECT_THROW(buckets.wait(other), Error);
  buckets.wait(stream);
  EXPECT_THROW(buckets.gradient_ready(0), Error);
}

// A pass without wait(): its sums may still run when the buckets are destroyed, or wait for a rank that never
// joins.
TEST(GradientBuckets, DestructionDuringAPassAbandonsTheJob) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
      {
        std::vector<Parameter> parameters = parameters_of({100'000, 16});
        GradientBuckets buckets(parameters, communicator, kEachAlone);
        Stream stream(Device{}, StreamUse::compute);
        buckets.begin(stream);
        buckets.gradient_ready(0);
      }
      EXPECT_TRUE(communicator.job()->abandoned());
    });
    for (const std::string& error : errors)  // of ranks that had not finished
      EXPECT_TRUE(error.empty() || names(error, "rank [0-2]\\b.*\\bgradients")) << error;
  }
}

TEST(GradientBuckets, EveryRankReportsDifferingPlans) {
  const std::function<void(std::vector<Parameter>&, BucketOptions&)> tampers[] = {
      [](std::vector<Parameter>& parameters, BucketOptions&) { parameters[3].name = "fc9.bias"; },
      [](std::vector<Parameter>& parameters, BucketOptions&) {
        parameters[9].layout = Layout({2}, DType::f32);
      },
      [](std::vector<Parameter>& parameters, BucketOptions&) {
        parameters[3].layout = Layout({4, 4}, DType::f32);
      },
      [](std::vector<Parameter>& parameters, BucketOptions&) { parameters[9].offset += kLine; },
      [](std::vector<Parameter>& parameters, BucketOptions&) { parameters.pop_back(); },
      [](std::vector<Parameter>&, BucketOptions& options) { options.first_bytes = 1 << 30; },
      [](std::vector<Parameter>&, BucketOptions& options) { options.last_bytes = 1 << 30; },
  };
  for (const auto& tamper : tampers) {
    const std::string error = agreed_message(4, exit_code::config, [&](Communicator& communicator) {
      std::vector<Parameter> parameters = parameters_of(kSizes);
      BucketOptions options = kSomeBuckets;
      if (communicator.rank() % 2 == 1) tamper(parameters, options);
      const GradientBuckets buckets(parameters, communicator, options);
    });
    EXPECT_TRUE(names(error, "ranks 1, 3")) << &tamper - tampers << ": " << error;
  }
}

// A bucket is sent as soon as it is full, not when the caller waits. The recorded spans show it.
TEST(GradientBuckets, AFullBucketIsSentBeforeBackwardEnds) {
  for (const bool overlap : {true, false}) {
    Timeline timelines[2];
    std::int64_t between[2] = {};
    run_thread_ranks(2, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      std::vector<Parameter> parameters = parameters_of({16, 16, 16});
      BucketOptions options = kEachAlone;
      options.overlap = overlap;
      GradientBuckets buckets(parameters, communicator, options, &timelines[rank]);
      Stream stream(Device{}, StreamUse::compute);
      buckets.begin(stream);
      buckets.gradient_ready(0);
      buckets.gradient_ready(2);            // full, but an earlier bucket is not
      communicator.stream().synchronize();  // completes all sent buckets
      between[rank] = now_ns();
      buckets.gradient_ready(1);
      buckets.wait(stream);
    });
    for (int rank = 0; rank < 2; ++rank) {
      const std::span<const Span> spans = timelines[rank].spans();
      ASSERT_EQ(spans.size(), 3u);
      for (std::size_t bucket = 0; bucket < 3; ++bucket) {
        EXPECT_STREQ(spans[bucket].name, "bucket");
        EXPECT_EQ(spans[bucket].track, Track::communication);
        EXPECT_EQ(spans[bucket].index, static_cast<std::int32_t>(bucket));
        EXPECT_TRUE(spans[bucket].numbered);
        EXPECT_LE(spans[bucket].begin_ns, spans[bucket].end_ns);
        const bool early = overlap && bucket == 0;
        EXPECT_EQ(spans[bucket].end_ns <= between[rank], early)
            << "overlap " << overlap << ", bucket " << bucket;
        EXPECT_EQ(spans[bucket].begin_ns >= between[rank], !early)
            << "overlap " << overlap << ", bucket " << bucket;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
