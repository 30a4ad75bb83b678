// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/running_sums.h"

#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/comm/codec_ranks.h"

namespace lockstep {
namespace {

static_assert(!sums_in_f32(SumType::automatic, DType::bf16, 9));
static_assert(sums_in_f32(SumType::automatic, DType::bf16, 10));
static_assert(!sums_in_f32(SumType::automatic, DType::f16, 65));
static_assert(sums_in_f32(SumType::automatic, DType::f16, 66));
static_assert(!sums_in_f32(SumType::automatic, DType::f32, 4096));
static_assert(sums_in_f32(SumType::f32, DType::f16, 2) && !sums_in_f32(SumType::f32, DType::f16, 1));
static_assert(!sums_in_f32(SumType::gradients, DType::bf16, 4096));

enum class Way { overlapped, behind_backward, delayed, bucket_by_bucket, not_exchanged };
constexpr Way kWays[] = {Way::overlapped, Way::behind_backward, Way::delayed, Way::bucket_by_bucket,
                         Way::not_exchanged};

struct Split {
  int ranks = 1;
  int micro_batches = 1;
  DType type = DType::bf16;
  Way way = Way::overlapped;
  SumType sum_type = SumType::automatic;
};

// Terms mostly of one sign, so that a sum grows far beyond them, and of many magnitudes.
float term(int step, int micro_batch, std::int64_t element, DType type) {
  const float drawn = made_up_gradient(micro_batch, step, element);
  const float value = std::copysign(0.25f + std::abs(drawn), 0.75f - drawn);  // one of eight is negative
  const float scaled = value / static_cast<float>(1 << (8 - element % 9));
  return type == DType::f16 ? static_cast<float>(Half(scaled)) : static_cast<float>(BFloat16(scaled));
}

void announce(GradientBuckets& buckets, std::size_t parameters) {
  for (std::size_t i = 0; i < parameters; ++i) buckets.gradient_ready(i);
}

// Calls the buckets as launch/train/step_ends does.
void run_step(GradientBuckets& buckets, std::span<const Parameter> parameters, const Split& split, int step,
              int rank) {
  Stream stream(Device{}, StreamUse::compute);
  const int last = split.micro_batches - 1;
  const bool leaves = split.way != Way::delayed && split.way != Way::not_exchanged;
  for (int micro = 0; micro <= last; ++micro) {
    CHECK(buckets.write(micro) == Write::overwrite);
    if (micro == last && leaves) buckets.begin(stream);
    write_gradients(parameters, [&](std::int64_t element) {
      return term(step, rank * split.micro_batches + micro, element, split.type);
    });
    if (micro == last && leaves)
      announce(buckets, parameters.size());
    else
      buckets.behind_micro_batch(stream, micro);
  }
  if (split.way == Way::delayed) {
    buckets.delay(stream);
    buckets.begin(stream);
    announce(buckets, parameters.size());
  }
  if (split.way != Way::not_exchanged) buckets.wait(stream);
}

float found(const FlatRange& range, std::int64_t element) {
  const std::int64_t i = element - range.begin;
  if (range.type == DType::f16) return static_cast<float>(static_cast<const Half*>(range.data)[i]);
  if (range.type == DType::bf16) return static_cast<float>(static_cast<const BFloat16*>(range.data)[i]);
  return static_cast<const float*>(range.data)[i];
}

// Each rank's sum is added in fp32 and rounded once; then the sum over ranks. fp16 rounds with an error of up
// to 2^-25 even near zero.
void expect_sums(const Split& split, const GradientBuckets& buckets, std::span<const Parameter> parameters,
                 int step, int rank) {
  const int first = split.way == Way::not_exchanged ? rank * split.micro_batches : 0;
  const int terms = split.micro_batches * (split.way == Way::not_exchanged ? 1 : split.ranks);
  for (const Parameter& parameter : parameters) {
    const bool is_half = parameter.gradient_type != DType::f32;
    const double unit = !is_half ? 0x1p-24 : split.type == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const FlatRange& range = buckets.gradients()[is_half ? 0 : 1];
    for (std::int64_t i = 0; i < parameter.layout.shape().elements(); i += 7) {
      const std::int64_t element = parameter.offset + i;
      double sum = 0, magnitudes = 0;
      for (int micro = first; micro < first + terms; ++micro) {
        const double value = term(step, micro, element, split.type);
        sum += value;
        magnitudes += std::abs(value);
      }
      double limit = terms * 0x1p-24 * magnitudes + unit * std::abs(sum) + 0x1p-25;
      if (split.ranks > 1 && first == 0) limit += unit * magnitudes;
      CHECK(std::abs(found(range, element) - sum) <= limit, "element {} is {}, expected {} within {}",
            element, found(range, element), sum, limit);
    }
  }
}

void try_split(const Split& split) {
  run_thread_ranks(split.ranks, [&](Communicator& communicator) {
    std::vector<Parameter> parameters = some_parameters(split.type);
    for (std::size_t i = parameters.size() / 2; i < parameters.size(); ++i)
      parameters[i].gradient_type = DType::f32;
    GradientBuckets buckets(parameters, communicator,
                            {.first_bytes = 1024,
                             .middle_bytes = 4096,
                             .last_bytes = 512,
                             .overlap = split.way != Way::behind_backward,
                             .micro_batches = split.micro_batches,
                             .sum_type = split.sum_type,
                             .delayed = split.way == Way::delayed,
                             .one_by_one = split.way == Way::bucket_by_bucket});
    CHECK(buckets.sum_bytes() == RunningSums::planned_bytes(buckets.gradients().back().end));
    for (int step = 0; step < 2; ++step) {
      run_step(buckets, parameters, split, step, communicator.rank());
      expect_sums(split, buckets, parameters, step, communicator.rank());
    }
  });
}

TEST(RunningSums, EqualFp64SumsRoundedOnceForAnyNumberOfMicroBatches) {
  Thinning thinning;
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const auto& [ranks, micro_batches] : {std::pair{1, in_large_form() ? 4096
                                                            : kOneOf == 1   ? 1024
                                                                            : 66},
                                               {2, 100},
                                               {3, 70}}) {
      if (!thinning.takes()) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches, {}", ranks, micro_batches, name_of(type)));
      EXPECT_NO_THROW(try_split({.ranks = ranks, .micro_batches = micro_batches, .type = type}));
    }
  }
}

TEST(RunningSums, AreTheSameForEveryEndOfAStep) {
  for (const Way way : kWays) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("way {}, {} ranks", static_cast<int>(way), ranks));
      EXPECT_NO_THROW(try_split({.ranks = ranks, .micro_batches = 12, .way = way}));
      EXPECT_NO_THROW(try_split({.ranks = ranks, .micro_batches = 2, .way = way, .sum_type = SumType::f32}));
    }
  }
}

// With local SGD the arena later holds differences of parameters, to which no sum may be added.
TEST(RunningSums, AreNotAddedToLaterExchanges) {
  const auto self = make_self_communicator();
  std::vector<Parameter> parameters = some_parameters(DType::bf16);
  GradientBuckets buckets(parameters, *self, {.micro_batches = 16});
  Stream stream(Device{}, StreamUse::compute);
  run_step(buckets, parameters, {.micro_batches = 16, .way = Way::not_exchanged}, 0, 0);
  const auto three = [](int, std::int64_t) { return 3.0f; };
  run_pass(buckets, parameters, 0, three);
  for (const Parameter& parameter : parameters) EXPECT_EQ(gradient_at(parameter, 0), 3.0f);
}

TEST(RunningSums, ExistOnlyIfRequested) {
  const auto self = make_self_communicator();
  const auto sum_bytes = [&](DType type, const BucketOptions& options) {
    std::vector<Parameter> parameters = some_parameters(type);
    const GradientBuckets buckets(parameters, *self, options);
    return buckets.sum_bytes();
  };
  EXPECT_EQ(sum_bytes(DType::f32, {.micro_batches = 4096}), 0u);
  EXPECT_EQ(sum_bytes(DType::bf16, {.micro_batches = 9}), 0u);
  EXPECT_GT(sum_bytes(DType::bf16, {.micro_batches = 10}), 0u);
  EXPECT_EQ(sum_bytes(DType::bf16, {.micro_batches = 4096, .sum_type = SumType::gradients}), 0u);
  EXPECT_EQ(sum_bytes(DType::bf16, {.micro_batches = 1, .sum_type = SumType::f32}), 0u);
  EXPECT_GT(sum_bytes(DType::bf16, {.micro_batches = 2, .sum_type = SumType::f32}), 0u);
}

}  // namespace
}  // namespace lockstep
