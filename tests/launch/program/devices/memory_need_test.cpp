// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/memory_need.h"

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Counts the calls, because each call plans a network.
struct Need {
  std::function<std::size_t(std::int64_t)> activations;
  std::size_t fixed = 0;
  int calls = 0;

  NeedOfBatch function() {
    return [this](std::int64_t batch) {
      ++calls;
      return MemoryNeed{.activations = activations(batch), .parameters = fixed};
    };
  }
  std::size_t total(std::int64_t batch) const { return activations(batch) + fixed; }
};

void expect_largest(Need need, std::int64_t too_large, std::size_t available) {
  const std::int64_t largest = largest_batch(need.function(), too_large, available);
  ASSERT_GE(largest, 1);
  ASSERT_LT(largest, too_large);
  EXPECT_LE(need.total(largest), available);
  EXPECT_GT(need.total(largest + 1), available);
  EXPECT_LE(need.calls, 40);
}

TEST(LargestBatch, IsFoundIfMemoryIsLinear) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * 3 * kMiB; }, 100 * kMiB};
  expect_largest(need, 1000, 500 * kMiB);
  EXPECT_EQ(largest_batch(need.function(), 1000, 500 * kMiB), 133);
  EXPECT_LE(need.calls, 6) << "linear guesses need few calls";
  expect_largest(need, 1'000'000'000, 500 * kMiB);
  expect_largest(need, 134, 500 * kMiB);
}

TEST(LargestBatch, IsFoundIfMemoryIsNotLinear) {
  const auto batch_of = [](std::int64_t batch) { return static_cast<std::size_t>(batch); };
  expect_largest({[&](std::int64_t batch) { return batch_of(batch) * batch_of(batch) * 64; }, kMiB}, 100'000,
                 64 * kMiB);
  expect_largest({[&](std::int64_t batch) { return (batch_of(batch) / 16 + 1) * kMiB; }}, 5000, 21 * kMiB);
  expect_largest({[&](std::int64_t batch) { return batch < 700 ? kMiB : 100 * kMiB; }}, 5000, 21 * kMiB);
}

TEST(LargestBatch, IsZeroIfNoneFits) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * kMiB; }, 100 * kMiB};
  EXPECT_EQ(largest_batch(need.function(), 64, 100 * kMiB), 0);
  EXPECT_EQ(largest_batch(need.function(), 1, 10 * kMiB), 0);
}

TEST(MemoryShortage, NamesPlannedAndAvailableMemoryAndTheChange) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * 8 * kMiB; }, 100 * kMiB};
  const MemoryShortage shortage{.device = {DeviceKind::cuda, 1},
                                .batch = 256,
                                .available = 1124 * kMiB,
                                .sharing = 2,
                                .remedies = {"buy more"}};
  const std::string text = describe_shortage(shortage, need.function());
  expect_parts(text, {"cuda:1", "2.10 GiB", "activations 2.00 GiB", "parameters 100.0 MiB", "1.10 GiB",
                      "2 ranks", " 128", "train.batch", " 256", "train.accumulation", "buy more"});
  EXPECT_EQ(text.find("optimizer"), std::string::npos) << "the optimizer needs no memory: " << text;
}

TEST(MemoryShortage, NamesTheLimitOnlyIfItIsReached) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * kMiB; }, 100 * kMiB};
  MemoryShortage shortage{.batch = 64, .available = 120 * kMiB, .limited = true};
  expect_parts(describe_shortage(shortage, need.function()),
               {" 20", "(world.memory_limit)", "raise world.memory_limit"});
  shortage.limited = false;
  EXPECT_EQ(describe_shortage(shortage, need.function()).find("memory_limit"), std::string::npos);
}

TEST(MemoryShortage, NamesNoBatchIfNoneFits) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * kMiB; }, 100 * kMiB};
  const std::string text =
      describe_shortage({.batch = 4, .available = kMiB, .remedies = {"buy more"}}, need.function());
  expect_parts(text, {"104.0 MiB", "1.0 MiB", "buy more"});
  EXPECT_EQ(text.find("train.batch"), std::string::npos) << text;
  expect_parts(describe_shortage({.batch = 4, .available = kMiB}, need.function()), {"smaller network"});
}

// The plan fits, but other programs use the memory.
TEST(MemoryShortage, NamesOtherProgramsIfThePlanFits) {
  Need need{[](std::int64_t batch) { return static_cast<std::size_t>(batch) * kMiB; }};
  const std::string text = describe_shortage({.batch = 4, .available = 100 * kMiB}, need.function());
  expect_parts(text, {"4.0 MiB", "100.0 MiB", "train.batch"});
  EXPECT_EQ(text.find("train.accumulation"), std::string::npos) << "names a batch that fits: " << text;
}

}  // namespace
}  // namespace lockstep
