// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/micro_batch_sums.h"

#include <bit>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "core/random.h"
#include "tests/comm/bucket_parameters.h"
#include "tests/comm/codec_ranks.h"
#include "tests/comm/keeps_its_share.h"
#include "tests/comm/naive_tree.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSumSizes[] = {300, 7, 1000, 16, 450, 33};
constexpr std::size_t kHalves = 3;  // the first 3, where there are 16-bit gradients
constexpr int kTreeSteps = 2;

// The gradient of a micro-batch, on whichever rank. Magnitudes vary, so that the order of a sum matters.
float leaf_gradient(int step, std::int64_t micro_batch, std::size_t parameter, std::int64_t element) {
  const Random random(static_cast<std::uint64_t>(1000 * step + micro_batch), std::uint64_t{parameter});
  const auto index = static_cast<std::uint64_t>(element);
  return random.normal(2 * index) * static_cast<float>(1 << random.bits(2 * index + 1) % 8);
}

template <typename T>
float rounded(float value) {
  return static_cast<float>(T(value));
}
float rounded_to(DType type, float value) {
  return type == DType::f16 ? rounded<Half>(value) : type == DType::bf16 ? rounded<BFloat16>(value) : value;
}

// The gradients of a backward pass, from the last parameter to the first: no bucket can be sent earlier.
void compute_leaf(std::span<const Parameter> parameters, int step, std::int64_t micro_batch,
                  GradientListener* listener) {
  for (std::size_t index = parameters.size(); index-- > 0;) {
    for (std::int64_t i = 0; i < kSumSizes[index]; ++i)
      set_gradient(parameters[index], i, leaf_gradient(step, micro_batch, index, i));
    if (listener != nullptr) listener->gradient_ready(index);
  }
}

void run_tree_step(GradientBuckets& buckets, std::span<const Parameter> parameters, int step, int rank,
                   std::int64_t micro_batches) {
  Stream stream(Device{}, StreamUse::compute);
  const std::int64_t first = rank * micro_batches, last = micro_batches - 1;
  for (std::int64_t micro = 0; micro < last; ++micro) {
    CHECK(buckets.write(micro) == Write::overwrite);
    compute_leaf(parameters, step, first + micro, nullptr);
    buckets.behind_micro_batch(stream, micro);
  }
  CHECK(buckets.write(last) == Write::overwrite);
  buckets.begin(stream);
  compute_leaf(parameters, step, first + last, &buckets);
  buckets.wait(stream);
}

// The sum over all micro-batches by the definition of the tree: in fp32, rounded once.
float sum_of_leaves(int step, int micro_batches, DType type, std::size_t parameter, std::int64_t element) {
  const auto leaf = [&](int micro) {
    return rounded_to(type, leaf_gradient(step, micro, parameter, element));
  };
  const float sum =
      naive_tree<16>(micro_batches, leaf, [](float earlier, float later) { return earlier + later; });
  return rounded_to(type, sum);
}

struct Dealing {
  int ranks = 1;
  int micro_batches = 1;
  DType half = DType::f32;  // type of the first kHalves gradients; f32: no 16-bit gradients
  bool overlap = true;
};

void expect_the_tree(const Dealing& wanted) {
  SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches, {}", wanted.ranks, wanted.micro_batches,
                           name_of(wanted.half)));
  run_thread_ranks(wanted.ranks, [&](Communicator& communicator) {
    const std::size_t halves = wanted.half == DType::f32 ? 0 : kHalves;
    std::vector<Parameter> parameters = parameters_of(kSumSizes, halves, wanted.half);
    GradientBuckets buckets(parameters, communicator,
                            {.first_bytes = 1024,
                             .middle_bytes = 2048,
                             .last_bytes = 512,
                             .overlap = wanted.overlap,
                             .micro_batches = wanted.micro_batches,
                             .along_tree = true});
    CHECK(buckets.buckets().size() > 2);
    const std::int64_t elements = buckets.gradients().back().end;
    CHECK(buckets.memory_bytes() ==
          buckets.plan().bytes() + MicroBatchSums::planned_bytes(elements,
                                                                 halves == 0 ? 0 : buckets.gradients()[0].end,
                                                                 wanted.micro_batches));
    for (int step = 0; step < kTreeSteps; ++step) {
      run_tree_step(buckets, parameters, step, communicator.rank(), wanted.micro_batches);
      for (std::size_t index = 0; index < parameters.size(); ++index) {
        for (std::int64_t i = 0; i < kSumSizes[index]; ++i) {
          const float sum = sum_of_leaves(step, wanted.ranks * wanted.micro_batches,
                                          parameters[index].gradient_type, index, i);
          CHECK(std::bit_cast<std::uint32_t>(gradient_at(parameters[index], i)) ==
                    std::bit_cast<std::uint32_t>(sum),
                "element {} of {} in step {} is {}, expected {}", i, parameters[index].name, step,
                gradient_at(parameters[index], i), sum);
        }
      }
    }
  });
}

TEST(MicroBatchSums, EqualTheTreeForAnyNumberOnOneRank) {
  for (const int micro_batches : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16}) expect_the_tree({1, micro_batches});
}

TEST(MicroBatchSums, EqualTheTreeForEveryDistributionOverRanks) {
  for (const auto& [ranks, micro_batches] : {std::pair{2, 4}, {4, 2}, {8, 1}, {3, 4}, {5, 2}})
    expect_the_tree({.ranks = ranks, .micro_batches = micro_batches});
}

TEST(MicroBatchSums, SixteenBitSumsAreRoundedOnce) {
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const auto& [ranks, micro_batches] : {std::pair{1, 8}, {1, 5}, {2, 4}, {8, 1}})
      expect_the_tree({.ranks = ranks, .micro_batches = micro_batches, .half = half});
  }
}

TEST(MicroBatchSums, AreTheSameWithoutOverlap) {
  expect_the_tree({.ranks = 2, .micro_batches = 4, .half = DType::bf16, .overlap = false});
}

TEST(MicroBatchSums, NeedDenseSumsAndOneSubtreePerRank) {
  std::vector<Parameter> parameters = parameters_of(kSumSizes);
  const auto self = make_self_communicator();
  EXPECT_EQ(message_of<ConfigError>([&] {
              const GradientBuckets buckets(
                  parameters, *self,
                  {.exchange = {.kind = &kKeepsItsShare}, .micro_batches = 2, .along_tree = true});
            }),
            "train.reproducible = true requires comm.codec = \"none\" (it is \"share\"): the result of any "
            "other depends on how micro-batches are divided among ranks");
  EXPECT_TRUE(make_up_a_subtree(3, 1) && make_up_a_subtree(4, 3) && make_up_a_subtree(1, 5));
  EXPECT_FALSE(make_up_a_subtree(3, 2));
}

}  // namespace
}  // namespace lockstep
