// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/codec_exchange.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/codecs/codec_plan.h"
#include "tests/comm/agreed_message.h"
#include "tests/comm/codec_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

bool compressed(const Parameter& parameter) { return takes_large_tensors({}, parameter); }

float to_wire(float value, DType wire) {
  return wire == DType::f16 ? static_cast<float>(Half(value)) : static_cast<float>(BFloat16(value));
}

// The expected fp16 or bf16 sum of a value: each node's ranks are added in fp32 and rounded, the results are
// added and rounded again.
float half_sum(const std::vector<int>& node_of, std::int64_t element, DType wire,
               const MakeGradient& gradient) {
  std::vector<double> nodes(static_cast<std::size_t>(*std::ranges::max_element(node_of)) + 1);
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    nodes[static_cast<std::size_t>(node_of[rank])] +=
        static_cast<double>(gradient(static_cast<int>(rank), element));
  }
  double sum = 0;
  for (const double node : nodes) sum += static_cast<double>(to_wire(static_cast<float>(node), wire));
  return to_wire(static_cast<float>(sum), wire);
}

TEST(CodecExchange, HalvesAreRoundedOnlyBetweenNodes) {
  for (const std::vector<int>& node_of : node_dealings()) {
    const bool several = std::ranges::max(node_of) > 0;
    for (const DType wire : {DType::f16, DType::bf16}) {
      const ExchangeKind& kind = wire == DType::f16 ? kFp16Codec : kBf16Codec;
      run_thread_ranks(
          static_cast<int>(node_of.size()),
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = some_parameters();
            GradientBuckets buckets(parameters, communicator, codec_buckets(kind));
            CHECK(buckets.buckets().size() > 2);
            for (int step = 0; step < 2; ++step) {
              // Multiples of 1 / 64: sums of a node have the same bits in any order.
              const auto gradient = [step](int rank, std::int64_t element) {
                return std::round(made_up_gradient(rank, step, element) * 4096) / 64;
              };
              run_pass(buckets, parameters, communicator.rank(), gradient);
              agreed_gradients(communicator, parameters);
              for (const Parameter& parameter : parameters) {
                for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
                  float exact = 0;
                  for (int rank = 0; rank < communicator.size(); ++rank)
                    exact += gradient(rank, parameter.offset + i);
                  const float expected = several && compressed(parameter)
                                             ? half_sum(node_of, parameter.offset + i, wire, gradient)
                                             : exact;
                  const float found = gradient_at(parameter, i);
                  CHECK(found == expected, "{}[{}] is {}, expected {}", parameter.name, i, found, expected);
                }
              }
            }
          },
          node_of);
    }
  }
}

constexpr const ExchangeKind* kEveryExchange[] = {&kDenseSum,  &kFp16Codec,     &kBf16Codec, &kInt8Codec,
                                                  &kSignCodec, &kPowerSgdCodec, &kTopKCodec, &kDgcCodec};

// The exchange of 2^k g equals 2^k times the exchange of g, and so does the next exchange with the residuals
// of the first.
TEST(CodecExchange, ScalingByAPowerOfTwoScalesEveryExchangeExactly) {
  constexpr int kPassSteps = 2;
  const std::vector<std::vector<int>> few = {{0, 1}, {0, 0, 1, 1}};
  std::vector<int> powers = Thinning().taken({-40, -16, 16, 40});
  if (in_large_form()) {
    powers.resize(81);
    std::iota(powers.begin(), powers.end(), -40);
  }
  for (const std::vector<int>& node_of : in_large_form() ? node_dealings() : few) {
    for (const ExchangeKind* kind : kEveryExchange) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", kind->name, node_of.size()));
      run_thread_ranks(
          static_cast<int>(node_of.size()),
          [&](Communicator& communicator) {
            const auto exchanged = [&](int power) {
              std::vector<Parameter> parameters = some_parameters();
              GradientBuckets buckets(parameters, communicator, codec_buckets(*kind));
              std::vector<float> all;
              for (int step = 0; step < kPassSteps; ++step) {
                run_pass(buckets, parameters, communicator.rank(), [&](int rank, std::int64_t element) {
                  return std::ldexp(made_up_gradient(rank, step, element), power);
                });
                const std::vector<float> gradients = agreed_gradients(communicator, parameters);
                all.insert(all.end(), gradients.begin(), gradients.end());
              }
              return all;
            };
            const std::vector<float> one = exchanged(0);
            for (const int power : powers) {
              const std::vector<float> other = exchanged(power);
              for (std::size_t i = 0; i < one.size(); ++i)
                CHECK(other[i] == std::ldexp(one[i], power), "element {} is {}, expected 2^{} times {}", i,
                      other[i], power, one[i]);
            }
          },
          node_of);
    }
  }
}

// bf16 gradients have no loss scale: the codec fp16 scales them, also where every node has one rank.
TEST(CodecExchange, Fp16KeepsBfloat16GradientsOfAnyMagnitude) {
  for (const std::vector<int>& node_of : std::vector<std::vector<int>>{{0, 1}, {0, 0, 1, 1}}) {
    run_thread_ranks(
        static_cast<int>(node_of.size()),
        [](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters(DType::bf16);
          GradientBuckets buckets(parameters, communicator, codec_buckets(kFp16Codec));
          for (const float magnitude : {0x1p-40f, 1.0f, 0x1p40f}) {
            run_pass(buckets, parameters, communicator.rank(), [&](int, std::int64_t) { return magnitude; });
            const float sum = magnitude * static_cast<float>(communicator.size());
            for (const float gradient : agreed_gradients(communicator, parameters))
              CHECK(gradient == sum, "a sum is {}, expected {}", gradient, sum);
          }
        },
        node_of);
  }
}

// The largest magnitude of a bucket over all ranks determines its scale, and zeros stay zeros.
TEST(CodecExchange, SumsOfHalvesOverRanksOfDifferentMagnitudesAreFinite) {
  run_thread_ranks(
      4,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, codec_buckets(kFp16Codec));
        for (const float magnitude : {0.0f, 1e-30f, 3e4f, 6e4f, 1e30f}) {
          run_pass(buckets, parameters, communicator.rank(),
                   [magnitude](int rank, std::int64_t) { return rank == 3 ? magnitude / 1024 : magnitude; });
          const float exact = 3 * magnitude + magnitude / 1024;
          for (const float value : agreed_gradients(communicator, parameters))
            CHECK(std::abs(value - exact) <= 0x1p-9f * exact, "{}, expected {}", value, exact);
        }
      },
      std::vector<int>{0, 1, 2, 3});
}

TEST(CodecExchange, SixteenBitGradientsAreSummedWithinNodesInFp32) {
  const std::vector<int> node_of = {0, 0, 1, 1};
  run_thread_ranks(
      4,
      [&](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters(DType::bf16);
        GradientBuckets buckets(parameters, communicator, codec_buckets(kFp16Codec));
        const auto gradient = [](int rank, std::int64_t element) {
          return static_cast<float>(BFloat16(made_up_gradient(rank, 0, element)));
        };
        run_pass(buckets, parameters, communicator.rank(), gradient);
        agreed_gradients(communicator, parameters);
        for (const Parameter& parameter : parameters) {
          for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
            float exact = 0;
            for (int rank = 0; rank < 4; ++rank) exact += gradient(rank, parameter.offset + i);
            CHECK(std::abs(gradient_at(parameter, i) - exact) <= 0x1p-8f * std::abs(exact) + 0x1p-9f);
          }
        }
      },
      node_of);
}

TEST(CodecExchange, RanksOfANodeMayCountAsNodes) {
  run_thread_ranks(2, [](Communicator& communicator) {
    std::vector<Parameter> parameters = some_parameters();
    const auto gradient = [](int rank, std::int64_t) { return rank == 0 ? 1.0f : 0x1p-13f; };
    for (const bool within : {false, true}) {
      BucketOptions options = codec_buckets(kFp16Codec);
      options.codecs.compress_within_node = within;
      GradientBuckets buckets(parameters, communicator, options);
      run_pass(buckets, parameters, communicator.rank(), gradient);
      CHECK(gradient_at(parameters[0], 0) == (within ? 1.0f : 1.0f + 0x1p-13f));
      CHECK(gradient_at(parameters[1], 0) == 1.0f + 0x1p-13f);  // a bias
    }
  });
}

// The bytes between nodes: 16 bits for compressed gradients, and the original type for dense ones.
TEST(CodecExchange, SendsHalfTheBytesOfCompressedGradients) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        std::int64_t dense = 0, half = 0, scales = 0;
        {
          GradientBuckets buckets(parameters, communicator, codec_buckets(kFp16Codec));
          for (const Bucket& bucket : buckets.buckets()) {
            std::int64_t packed = 0;
            for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
              const std::int64_t elements = flat_elements(parameters, i, buckets.buckets().back().end);
              (compressed(parameters[i]) ? packed : dense) += elements;
            }
            half += (packed + 511) / 512 * 512;  // blocks for each of two nodes
            scales += packed > 0 ? 1 : 0;
          }
          communicator.stream().synchronize();
          const std::uint64_t before = communicator.traffic().sent_bytes;
          run_pass(buckets, parameters, communicator.rank(), [](int, std::int64_t) { return 1.0f; });
          // An all_reduce between two nodes sends half in the reduction and half in the distribution of the
          // sum.
          const std::uint64_t sent = communicator.traffic().sent_bytes - before;
          const auto least = static_cast<std::uint64_t>(4 * dense + 2 * half);
          CHECK(sent >= least && sent <= least + 4 * static_cast<std::uint64_t>(scales),
                "sent {} bytes for {} dense and {} fp16 elements in {} buckets", sent, dense, half, scales);
        }
      },
      std::vector<int>{0, 1});
}

TEST(CodecExchange, GroupsCompareCallsAsOftenAsTheCommunicator) {
  run_thread_ranks(
      4,
      [](Communicator& communicator) {
        communicator.set_call_check(CallCheck::collective);
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, codec_buckets(kInt8Codec));
        const std::vector<Communicator*> groups = buckets.exchange().communicators();
        CHECK(groups.size() == 2, "{} groups: of a node and across nodes", groups.size());
        for (const Communicator* group : groups) CHECK(group->call_check() == CallCheck::collective);
        run_pass(buckets, parameters, communicator.rank(), [](int, std::int64_t) { return 1.0f; });
        agreed_gradients(communicator, parameters);
      },
      std::vector<int>{0, 0, 1, 1});
}

TEST(CodecExchange, NonFiniteGradientsReachTheSum) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    run_thread_ranks(
        3,
        [bad](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          GradientBuckets buckets(parameters, communicator, codec_buckets(kFp16Codec));
          run_pass(buckets, parameters, communicator.rank(), [&](int rank, std::int64_t element) {
            return rank == 2 && element == parameters[2].offset + 77 ? bad : 1.0f;
          });
          CHECK(!std::isfinite(gradient_at(parameters[2], 77)));
          CHECK(gradient_at(parameters[2], 76) == 3.0f);
        },
        std::vector<int>{0, 0, 1});
  }
}

TEST(CodecExchange, RulesAssignCodecsByParameterName) {
  GradientSettings settings{.codec = "fp16", .codec_for = "p0=none, p2 = bf16"};
  run_thread_ranks(
      2,
      [&](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        BucketOptions options = bucket_options(settings);
        GradientBuckets buckets(parameters, communicator, options);
        run_pass(buckets, parameters, communicator.rank(),
                 [](int, std::int64_t) { return 1 + 0x1p-9f + 0x1p-20f; });
        CHECK(gradient_at(parameters[0], 3) == 2 + 0x1p-8f + 0x1p-19f);
        CHECK(gradient_at(parameters[2], 3) == 2);
        CHECK(gradient_at(parameters[5], 3) == 2 + 0x1p-8f);
      },
      std::vector<int>{0, 1});
}

std::string error_of(const GradientSettings& settings, std::vector<Parameter> parameters) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  return message_of<ConfigError>(
      [&] { GradientBuckets(parameters, *communicator, bucket_options(settings)); });
}

TEST(CodecExchange, RefusesInvalidSettings) {
  const Shape small[] = {{10, 10}, {5000}};
  const std::string least = fmt::format("{} elements", kLeastCompressed);
  expect_parts(error_of({.codec = "fp16"}, shaped_parameters(small)), {"comm.codec = \"fp16\"", least});
  expect_parts(error_of({.codec_for = "p1=fp16"}, some_parameters()), {"comm.codec_for", "p1=fp16", least});
  // The message names a parameter that exists.
  expect_parts(error_of({.codec_for = "fc*=fp16"}, some_parameters()),
               {"comm.codec_for", "\"fc*\"", "\"p0\""});
  expect_parts(error_of({.codec_for = "fp16"}, some_parameters()),
               {"comm.codec_for", "\"fp16\"", "PATTERN=CODEC"});
  expect_parts(error_of({.codec_for = "*=fp17"}, some_parameters()), {"\"fp17\"", "none, fp16", "powersgd"});
}

TEST(CodecExchange, EveryRankReportsDifferingRules) {
  const std::string error = agreed_message(2, exit_code::config, [](Communicator& communicator) {
    std::vector<Parameter> parameters = some_parameters();
    BucketOptions options = codec_buckets(kFp16Codec);
    options.codecs.compress_within_node = communicator.rank() == 1;
    const GradientBuckets buckets(parameters, communicator, options);
  });
  expect_in_order(error, {"rank 1", "rank 0"});
}

// Shares cover all packed gradients exactly once. Shares of whole parameters begin at parameters.
TEST(CodecPlan, SharesCoverAllPackedGradientsOnce) {
  const std::vector<Parameter> parameters = some_parameters();
  const BucketPlan plan(parameters, {.first_bytes = 8192, .middle_bytes = 24 << 10, .last_bytes = 4096}, 1);
  std::vector<bool> chosen;
  for (const Parameter& parameter : parameters) chosen.push_back(compressed(parameter));
  for (const bool whole : {false, true}) {
    for (const int drivers : {1, 2, 3, 8}) {
      std::vector<std::int64_t> seen(parameters.size());
      for (const Bucket& bucket : plan.buckets()) {
        PackedStretch stretch = pack_stretch(bucket, parameters, chosen);
        deal_shares(stretch, parameters, {.drivers = drivers, .unit = 512, .whole_parameters = whole});
        ASSERT_EQ(std::ssize(stretch.shares), drivers);
        std::int64_t next = 0;
        for (const ElementRange& share : stretch.shares) {
          EXPECT_EQ(share.begin, next);
          next = share.end;
          EXPECT_TRUE(whole || share.count() % 512 == 0);
          EXPECT_LE(share.end, stretch.room);
          for (const CodecPiece& piece : pieces_of(stretch, parameters, share)) {
            EXPECT_EQ(piece.range.begin, whole ? 0 : seen[piece.parameter]);
            seen[piece.parameter] += piece.range.count();
            EXPECT_GE(piece.place, 0);
            EXPECT_LE(piece.place + piece.range.count(), share.count());
          }
        }
        EXPECT_GE(next, stretch.packed);
      }
      for (std::size_t i = 0; i < parameters.size(); ++i)
        EXPECT_EQ(seen[i], chosen[i] ? parameters[i].layout.physical_elements() : 0) << parameters[i].name;
    }
  }
}

}  // namespace
}  // namespace lockstep
