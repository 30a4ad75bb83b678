// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/layer_profile.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

// A rank that measured alone would wait for its peers forever.
TEST(MeasureTogether, AllRanksMeasureTogether) {
  constexpr int kRanks = 3;
  const auto hub = make_thread_hub(kRanks);
  std::barrier all_measure(kRanks);
  std::atomic<int> done = 0;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto communicator = make_thread_communicator(hub, rank);
      measure_together(*communicator, [&] {
        all_measure.arrive_and_wait();
        ++done;
      });
      EXPECT_EQ(done, kRanks) << "rank " << rank << " continued while its peers measured";
    });
  }
}

using Row = LayerProfile::Row;

// The row of a linear layer whose forward took 1 ms in each micro-batch.
Row row_in(Precision precision, const Peak& peak, int steps = 1, int micro_batches = 1) {
  Graph graph({.batch = 4, .height = 4, .width = 4, .channels = 1, .classes = 8});
  graph.classify(graph.linear(graph.input(), {.features = 8}, "fc"));
  Network network(graph, {.precision = precision});
  LayerProfile profile(graph, network, nullptr);
  for (std::size_t node = 0; node < network.nodes().size(); ++node)
    for (int i = 0; network.nodes()[node].name == "fc" && i < steps * micro_batches; ++i)
      profile.layer_ran(node, Direction::forward, 0, 1'000'000);
  const std::vector<Row> rows = profile.rows(steps, micro_batches, peak);
  return rows.size() == 1 ? rows.front() : Row{};
}

TEST(LayerProfile, ComparesALayerWithComputeAndMemoryPeaks) {
  constexpr double kOperations = 2 * 4 * 16 * 8, kElements = 4 * 16 + 16 * 8 + 4 * 8;
  const Peak fast_memory{.gigaflops = 0.01, .half_gigaflops = 0.08, .gigabytes_per_second = 1000};
  const Peak slow_memory{.gigaflops = 1000, .half_gigaflops = 8000, .gigabytes_per_second = 0.01};
  EXPECT_NEAR(row_in(Precision::fp32, fast_memory).share_of_peak, kOperations * 1e-6 / 0.01, 1e-9);
  EXPECT_NEAR(row_in(Precision::fp32, slow_memory).share_of_peak, 4 * kElements * 1e-6 / 0.01, 1e-9);
  for (const Precision half : {Precision::fp16, Precision::bf16}) {
    EXPECT_NEAR(row_in(half, fast_memory).share_of_peak, kOperations * 1e-6 / 0.08, 1e-9);
    EXPECT_NEAR(row_in(half, slow_memory).share_of_peak, 2 * kElements * 1e-6 / 0.01, 1e-9);
    EXPECT_NEAR(row_in(half, slow_memory).gigabytes_per_second, 2 * kElements * 1e-6, 1e-9);
  }
}

TEST(LayerProfile, RatesDoNotDependOnTheNumberOfMicroBatches) {
  const Peak peak{.gigaflops = 0.01, .gigabytes_per_second = 0.01};
  const Row one = row_in(Precision::fp32, peak), three = row_in(Precision::fp32, peak, 2, 3);
  EXPECT_NEAR(one.milliseconds, 1, 1e-9);
  EXPECT_NEAR(three.milliseconds, 3, 1e-9) << "of a step";
  EXPECT_NEAR(three.gigaflops, one.gigaflops, 1e-9);
  EXPECT_NEAR(three.gigabytes_per_second, one.gigabytes_per_second, 1e-9);
  EXPECT_NEAR(three.share_of_peak, one.share_of_peak, 1e-9);
}

TEST(LayerProfile, WithoutAMeasuredPeakSharesAreUnknown) {
  const Row row = row_in(Precision::fp32, {});
  EXPECT_GT(row.gigaflops, 0);
  EXPECT_EQ(row.share_of_peak, 0);
  EXPECT_FALSE(row.memory_bound);
}

TEST(ExplainAbovePeak, IsEmptyBelowThePeak) {
  const Row rows[] = {{.share_of_peak = 1.004}, {.share_of_peak = 0.3}};
  EXPECT_TRUE(explain_above_peak(rows).empty());
}

TEST(ExplainAbovePeak, GivesEachReasonOnce) {
  const Row computes{.share_of_peak = 1.2}, cached{.share_of_peak = 2, .memory_bound = true};
  const Row rows[] = {computes, cached, computes, cached};
  EXPECT_EQ(explain_above_peak(rows).size(), 2u);
  const std::vector<std::string> of_cached = explain_above_peak(std::span(&cached, 1));
  ASSERT_EQ(of_cached.size(), 1u);
  expect_parts(of_cached[0], {"100 %", "cache"});
  const std::vector<std::string> of_computes = explain_above_peak(std::span(&computes, 1));
  ASSERT_EQ(of_computes.size(), 1u);
  EXPECT_EQ(of_computes[0].find("cache"), std::string::npos) << of_computes[0];
}

}  // namespace
}  // namespace lockstep
