// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/auto_exchange.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "comm/codecs/codec_speed.h"
#include "tests/comm/codec_ranks.h"
#include "tests/comm/codec_state.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

const std::vector<std::vector<int>> kSeveralNodes =
    Thinning().taken<std::vector<int>>({{0, 0, 1, 1}, {0, 1}, {0, 1, 2}, {0, 0, 0, 1, 1}});
constexpr int kInt8Number = 2;  // index among the candidates

BucketOptions auto_buckets() {
  BucketOptions options = codec_buckets(kAutoCodec);
  options.codecs.candidates = {{.kind = &kBf16Codec}, {.kind = &kInt8Codec}, steady(kPowerSgdCodec)};
  return options;
}

std::vector<float> step_of(Communicator& communicator, GradientBuckets& buckets,
                           std::span<const Parameter> parameters, int step) {
  run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
  return agreed_gradients(communicator, parameters);
}

AutoExchange& choice_of(GradientBuckets& buckets) {
  AutoExchange* exchange = buckets.exchange().to_choose();
  CHECK(exchange != nullptr);
  return *exchange;
}

// Dense and each candidate in turn, by bucket.
std::vector<int> by_turns(const GradientBuckets& buckets) {
  std::vector<int> by_bucket;
  for (int i = 0; i < std::ssize(buckets.buckets()); ++i) by_bucket.push_back((i + 2) % 4);
  return by_bucket;
}

// All parameters with one fixed codec.
struct Fixed {
  Fixed(Communicator& communicator, const ExchangeChoice& choice)
      : buckets(parameters, communicator, codec_buckets(*choice.kind)) {}
  std::vector<Parameter> parameters = some_parameters();
  GradientBuckets buckets;
};

TEST(AutoExchange, IsDenseUntilChooseSetsTheCodecOfEachBucket) {
  for (const std::vector<int>& node_of : kSeveralNodes) {
    run_thread_ranks(
        static_cast<int>(node_of.size()),
        [](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
          GradientBuckets chosen(parameters, communicator, auto_buckets());
          GradientBuckets dense(others, communicator, codec_buckets(kDenseSum));
          for (int step = 0; step < 2; ++step) {
            CHECK(step_of(communicator, chosen, parameters, step) ==
                  step_of(communicator, dense, others, step));
          }
          CHECK(chosen.memory_bytes() == dense.memory_bytes() || communicator.size() > 3,
                "expected no memory for codecs that are not chosen");
          const std::vector<int> by_bucket = by_turns(chosen);
          choice_of(chosen).choose(by_bucket);
          CHECK(std::ranges::equal(choice_of(chosen).chosen(), by_bucket));
          // A bucket is independent of the codecs of other buckets.
          std::vector<std::unique_ptr<Fixed>> fixed;
          for (const ExchangeChoice& choice : choice_of(chosen).choices())
            fixed.push_back(std::make_unique<Fixed>(communicator, choice));
          for (int step = 2; step < 5; ++step) {
            step_of(communicator, chosen, parameters, step);
            for (auto& each : fixed) step_of(communicator, each->buckets, each->parameters, step);
            for (std::size_t i = 0; i < parameters.size(); ++i) {
              const int number = by_bucket[chosen.plan().bucket_of(i)];
              const Parameter& like = fixed[static_cast<std::size_t>(number)]->parameters[i];
              for (std::int64_t k = 0; k < like.layout.shape().elements(); ++k) {
                CHECK(gradient_at(parameters[i], k) == gradient_at(like, k), "{}[{}] in step {}, by {}",
                      like.name, k, step, number);
              }
            }
          }
          const std::vector<int> none(by_bucket.size(), 0);
          choice_of(chosen).choose(none);
          CHECK(state_of(chosen).empty());
          CHECK(step_of(communicator, chosen, parameters, 5) == step_of(communicator, dense, others, 5),
                "expected dense sums after choosing no codec");
        },
        node_of);
  }
}

// One codec for all buckets equals the exchange of that codec, in bits and in sent bytes.
TEST(AutoExchange, WithOneCodecForAllBucketsEqualsThatCodec) {
  for (const std::vector<int>& node_of : kSeveralNodes) {
    run_thread_ranks(
        static_cast<int>(node_of.size()),
        [](Communicator& communicator) {
          const BucketOptions options = auto_buckets();
          for (int number = 1; number < 4; ++number) {
            std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
            const ExchangeChoice& choice = options.codecs.candidates[static_cast<std::size_t>(number - 1)];
            GradientBuckets chosen(parameters, communicator, options);
            GradientBuckets fixed(others, communicator, codec_buckets(*choice.kind));
            choice_of(chosen).choose(std::vector<int>(chosen.buckets().size(), number));
            for (int step = 0; step < 3; ++step) {
              CHECK(same_bits(step_of(communicator, chosen, parameters, step),
                              step_of(communicator, fixed, others, step)),
                    "{}", choice.describe());
            }
            CHECK(same_bits(state_of(chosen), state_of(fixed)), "{}", choice.describe());
            CHECK(chosen.memory_bytes() == fixed.memory_bytes());
          }
        },
        node_of);
  }
}

TEST(AutoExchange, KeepsTheStateOfBucketsWhoseCodecIsUnchanged) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, auto_buckets());
        std::vector<int> by_bucket(buckets.buckets().size(), kInt8Number);
        choice_of(buckets).choose(by_bucket);
        step_of(communicator, buckets, parameters, 0);
        const CodecState before = state_of(buckets);
        by_bucket[0] = 0;
        choice_of(buckets).choose(by_bucket);
        const CodecState after = state_of(buckets);
        CHECK(!after.empty() && after.size() < before.size());
        for (const auto& [name, values] : after) CHECK(same_bits(values, before.at(name)), "{}", name);
        by_bucket[0] = kInt8Number;
        choice_of(buckets).choose(by_bucket);
        int fresh = 0;
        for (const auto& [name, values] : state_of(buckets)) {
          const auto kept = after.find(name);
          if (kept != after.end()) {
            CHECK(same_bits(values, kept->second), "{}", name);
            continue;
          }
          ++fresh;
          CHECK(std::ranges::count(values, 0.0f) == std::ssize(values), "{} must start at zero", name);
        }
        CHECK(fresh > 0);
      },
      std::vector<int>{0, 1});
}

TEST(AutoExchange, KeepsTheCodecsThatRulesAssignByName) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
        BucketOptions options = auto_buckets();
        options.codecs.rules = {{.pattern = "p2", .choice = {.kind = &kSignCodec}},
                                {.pattern = "p8", .choice = {.kind = &kDenseSum}}};
        BucketOptions fixed_options = codec_buckets(kDenseSum);
        fixed_options.codecs.rules = {options.codecs.rules[0]};
        GradientBuckets buckets(parameters, communicator, options);
        GradientBuckets fixed(others, communicator, fixed_options);
        for (int step = 0; step < 3; ++step) {
          CHECK(same_bits(step_of(communicator, buckets, parameters, step),
                          step_of(communicator, fixed, others, step)));
        }
        const CodecState before = state_of(buckets);
        CHECK(before.contains("p2.residual") && !before.contains("p0.residual"));
        choice_of(buckets).choose(std::vector<int>(buckets.buckets().size(), kInt8Number));
        const CodecState after = state_of(buckets);
        for (const auto& [name, values] : before) CHECK(same_bits(values, after.at(name)), "{}", name);
        CHECK(after.contains("p0.residual") && !after.contains("p8.residual"));
      },
      std::vector<int>{0, 1});
}

TEST(AutoExchange, HasNoChoiceOnOneNodeOrWithoutCandidates) {
  run_thread_ranks(2, [](Communicator& communicator) {
    std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
    GradientBuckets buckets(parameters, communicator, auto_buckets());
    GradientBuckets dense(others, communicator, codec_buckets(kDenseSum));
    CHECK(buckets.exchange().to_choose() == nullptr);
    CHECK(step_of(communicator, buckets, parameters, 0) == step_of(communicator, dense, others, 0));
    CHECK(buckets.memory_bytes() == dense.memory_bytes());
    BucketOptions within = auto_buckets();
    within.codecs.compress_within_node = true;
    std::vector<Parameter> more = some_parameters();
    GradientBuckets of_ranks(more, communicator, within);
    CHECK(of_ranks.exchange().to_choose() != nullptr);
    within.codecs.candidates.clear();
    std::vector<Parameter> last = some_parameters();
    GradientBuckets nothing(last, communicator, within);
    CHECK(nothing.exchange().to_choose() == nullptr);
  });
}

TEST(AutoExchange, LimitsAreOrderedByLossOfPrecision) {
  const auto names = [](std::string_view limit) {
    std::vector<std::string_view> within;
    for (const ExchangeKind* kind : codecs_within(limit)) within.push_back(kind->name);
    return fmt::format("{}", fmt::join(within, " "));
  };
  EXPECT_EQ(names("none"), "");
  EXPECT_EQ(names("fp16"), "fp16");
  EXPECT_EQ(names("bf16"), "bf16");
  EXPECT_EQ(names("int8"), "bf16 int8");
  EXPECT_EQ(names("powersgd"), "bf16 int8 powersgd");
  EXPECT_EQ(names("topk"), "bf16 int8 powersgd sign topk");
  expect_parts(message_of<ConfigError>([] { codecs_within("dgc"); }),
               {"comm.codec_limit", "\"dgc\"", "none, fp16, bf16, int8, powersgd, sign, topk"});
}

TEST(AutoExchange, CandidatesAreThoseWithinTheLimitWithTheirOptions) {
  GradientSettings settings{.codec = "auto", .codec_limit = "powersgd"};
  settings.own.at("powersgd", kPowerSgdCodec.options[0]) = 4;
  const BucketOptions options = bucket_options(settings);
  ASSERT_EQ(options.codecs.candidates.size(), 3u);
  EXPECT_EQ(options.codecs.candidates.back().whole_option("rank"), 4);
  settings.codec_limit = "int8";
  EXPECT_EQ(bucket_options(settings).codecs.candidates.size(), 2u);
}

TEST(AutoExchange, RanksHaveTheSameCandidates) {
  const std::vector<std::string> errors = try_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        BucketOptions options = auto_buckets();
        if (communicator.rank() == 1) options.codecs.candidates.pop_back();
        GradientBuckets buckets(parameters, communicator, options);
      },
      std::vector<int>{0, 1});
  expect_parts(errors[0], {"rank 1", "rank 0"});
  EXPECT_EQ(errors[1], errors[0]);
}

// The predicted bytes equal the sent bytes, except for filled-up blocks.
TEST(BucketTravel, PredictsTheSentBytes) {
  if (kOneOf > 1) GTEST_SKIP() << "too slow under a sanitizer; the optimised build counts bytes";
  static const Shape shapes[] = {{256, 1024}, {256}, {512, 512}, {128, 64, 3, 3}};
  for (const ExchangeKind* kind :
       {&kDenseSum, &kFp16Codec, &kInt8Codec, &kSignCodec, &kPowerSgdCodec, &kTopKCodec}) {
    for (const std::vector<int>& node_of : {std::vector<int>{0, 1}, {0, 1, 2}}) {
      run_thread_ranks(
          static_cast<int>(node_of.size()),
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = shaped_parameters(shapes);
            const BucketOptions options = codec_buckets(*kind);
            GradientBuckets buckets(parameters, communicator, options);
            const std::uint64_t before = communicator.traffic().sent_bytes;
            step_of(communicator, buckets, parameters, 0);
            // Without the gather that compares the ranks' gradients.
            const std::uint64_t gathered =
                static_cast<std::uint64_t>(communicator.size() - 1) * gradients_of(parameters).size() * 4;
            const auto sent = static_cast<double>(communicator.traffic().sent_bytes - before - gathered);
            const CodecAssignment assignment{.choices = {options.exchange},
                                             .of_parameter = std::vector<std::size_t>(parameters.size(), 0)};
            const std::vector<double> free = {0};
            double bytes = 0;
            for (const BucketTravel& travel : travel_of(buckets.buckets(), parameters, buckets.sent_type(),
                                                        assignment, communicator.size(), free))
              bytes += travel.bytes;
            const double n = communicator.size();
            const double expected = 2 * (n - 1) / n * bytes;
            CHECK(std::abs(sent - expected) <= 0.03 * expected + 64,
                  "{} between {}: {} sent, {} by the formula", kind->name, n, sent, expected);
          },
          node_of);
    }
  }
}

// Over ranks that would round partial sums, sums of bf16 gradients are sent in fp32: int8 then sends a
// quarter of them.
TEST(BucketTravel, CountsDenseSumsInTheTypeInWhichTheyAreSent) {
  const std::vector<Parameter> parameters = shaped_parameters(std::vector<Shape>{{256, 1024}}, DType::bf16);
  const BucketPlan plan(parameters, {}, 2);
  const std::vector<double> free = {0};
  const auto bytes = [&](const ExchangeKind& kind, DType weight_type) {
    const CodecAssignment assignment{.choices = {{.kind = &kind}}, .of_parameter = {0}};
    return travel_of(plan.buckets(), parameters, weight_type, assignment, 2, free).front().bytes;
  };
  EXPECT_EQ(bytes(kDenseSum, DType::bf16), 256 * 1024 * 2);
  EXPECT_EQ(bytes(kDenseSum, DType::f32), 256 * 1024 * 4);
  EXPECT_EQ(bytes(kInt8Codec, DType::bf16), bytes(kInt8Codec, DType::f32));
}

TEST(BucketTravel, PlannedMemoryIsCloseToTheHeldMemory) {
  static const Shape shapes[] = {{512, 512}, {512, 512}, {768, 512}};
  for (const ExchangeKind* kind :
       {&kFp16Codec, &kBf16Codec, &kInt8Codec, &kSignCodec, &kPowerSgdCodec, &kTopKCodec, &kDgcCodec}) {
    for (const std::vector<int>& node_of : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}}) {
      run_thread_ranks(
          static_cast<int>(node_of.size()),
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = shaped_parameters(shapes);
            BucketOptions options = codec_buckets(*kind);
            options.momentum = {.momentum = 0.5};
            options.first_bytes = 64 << 20;  // few buckets: whole parameters are distributed about evenly
            GradientBuckets buckets(parameters, communicator, options);
            const int nodes = node_of.back() + 1;
            CodecLoad load{.nodes = nodes, .drivers = communicator.size() / nodes};
            for (const Bucket& bucket : buckets.buckets()) {
              load.elements += static_cast<double>(bucket.count());
              load.largest_bucket = std::max(load.largest_bucket, static_cast<double>(bucket.count()));
            }
            const auto planned = static_cast<double>(planned_codec_bytes({.kind = kind}, load));
            const auto held = static_cast<double>(buckets.exchange().memory_bytes());
            // fp16 values of a node with one rank are exchanged in place, not packed.
            const bool ready = kind == &kFp16Codec && load.drivers == 1;
            CHECK(planned > 0.8 * held && planned < (ready ? 3.1 : 1.5) * held,
                  "{} on {} ranks of {} nodes: {} planned, {} held", kind->name, communicator.size(), nodes,
                  planned, held);
          },
          node_of);
    }
  }
  EXPECT_EQ(planned_codec_bytes({.kind = &kDenseSum}, {.elements = 1e6, .largest_bucket = 1e6}), 0u);
}

TEST(CodecSpeed, IsMeasuredForEveryCandidate) {
  for (const ExchangeKind* kind : {&kFp16Codec, &kInt8Codec, &kPowerSgdCodec, &kSignCodec, &kTopKCodec})
    EXPECT_GT(codec_seconds_per_element({.kind = kind}, Device{}, 3), 0) << kind->name;
}

}  // namespace
}  // namespace lockstep
