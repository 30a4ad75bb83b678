// SPDX-License-Identifier: Apache-2.0
//
// The smallest batch, the fewest classes, and the memory that a network really uses.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"
#include "tests/models/slopes.h"

namespace lockstep {
namespace {

using Build = std::function<void(Graph&)>;

const Build kNetworks[] = {[](Graph& graph) { mlp(graph); }, [](Graph& graph) { cnn(graph); },
                           [](Graph& graph) { cifar_resnet(graph, 1); }};

void expect_finite_state(NetworkFixture& fixture) {
  const StateSnapshot snapshot(fixture.network());
  for (const auto& entry : snapshot.entries()) {
    EXPECT_TRUE(std::ranges::all_of(entry.values, [](float value) { return std::isfinite(value); }))
        << entry.name;
  }
}

TEST(Extremes, ABatchOfOneHasTheGradientsOfItsLoss) {
  for (const Build& build : kNetworks) {
    NetworkFixture fixture({.batch = 1, .height = 8, .width = 8, .channels = 3, .classes = 5}, build);
    EXPECT_GT(fixture.forward_backward(), 0);
    EXPECT_LT(slope_error(fixture, fixture.network().parameters()), 0.1);
    expect_finite_state(fixture);
  }
}

// Batch norm gets one value of each channel: the deviation is 0, and running statistics stay finite.
TEST(Extremes, BatchNormOfASingleValueStaysFinite) {
  NetworkFixture fixture({.batch = 1, .height = 1, .width = 1, .channels = 3, .classes = 5},
                         [](Graph& graph) {
                           const Value x = graph.convolution(graph.input(), {.channels = 16}, "conv");
                           graph.classify(graph.linear(graph.batch_norm(x, {}, "bn"), {.features = 5}, "fc"));
                         });
  EXPECT_NEAR(fixture.forward_backward(), std::log(5.0), 1.0);
  EXPECT_TRUE(std::ranges::all_of(fixture.gradients(), [](float value) { return std::isfinite(value); }));
  expect_finite_state(fixture);
}

TEST(Extremes, OneClassHasZeroLossAndGradients) {
  for (const Build& build : kNetworks) {
    for (const std::int64_t batch : {1, 4}) {
      NetworkFixture fixture({.batch = batch, .height = 8, .width = 8, .channels = 3, .classes = 1}, build);
      EXPECT_EQ(fixture.forward_backward(), 0.0);
      EXPECT_TRUE(std::ranges::all_of(fixture.gradients(), [](float value) { return value == 0; }));
      expect_finite_state(fixture);
    }
  }
}

std::size_t resident_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Extremes, ResidentMemoryEqualsThePlan) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep shadow memory and freed memory";
#endif
  const auto build = [](Graph& graph) { build_network(graph, {.name = "resnet18"}); };
  const auto input = [](std::int64_t batch) {
    return GraphInput{.batch = batch, .height = 32, .width = 32, .channels = 3, .classes = 10};
  };
  NetworkFixture(input(1), build).forward_backward();  // memory that libraries allocate once
  const std::size_t before = resident_bytes();
  NetworkFixture fixture(input(16), build);
  for (int step = 0; step < 2; ++step) fixture.forward_backward();
  const auto taken = static_cast<double>(resident_bytes() - before);
  const MemoryPlan& plan = fixture.network().memory();
  const auto planned = static_cast<double>(plan.activations + plan.parameters + plan.weight_copies +
                                           plan.gradients + plan.statistics);
  EXPECT_GT(planned, 100e6);
  EXPECT_GT(taken, 0.95 * planned);
  EXPECT_LT(taken, 1.1 * planned);
}

TEST(Extremes, ActivationsOfADescribedNetworkTakeNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep shadow memory and freed memory";
#endif
  Graph graph({.batch = 64, .height = 32, .width = 32, .channels = 3, .classes = 10});
  build_network(graph, {.name = "resnet18"});
  const auto before = static_cast<double>(resident_bytes());
  const Network network(graph, {.computes = false});
  EXPECT_LT(static_cast<double>(resident_bytes()) - before,
            0.5 * static_cast<double>(network.memory().activations));
}

}  // namespace
}  // namespace lockstep
