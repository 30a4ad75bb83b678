// SPDX-License-Identifier: Apache-2.0
#include "models/compute_roof.h"

#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "models/network.h"
#include "models/work.h"

namespace lockstep {
namespace {

Graph images(std::int64_t batch, std::int64_t channels) {
  return Graph({.batch = batch, .height = 8, .width = 8, .channels = channels, .classes = 10});
}

// A device whose memory is never the limit, and one whose memory always is.
constexpr DeviceRates kFastMemory{.gigaflops = 100, .gigabytes_per_second = 1e9};
constexpr DeviceRates kSlowMemory{.gigaflops = 1e9, .gigabytes_per_second = 10};

TEST(ComputeRoof, EqualsTheProductsIfMemoryIsFast) {
  Graph graph = images(4, 16);
  graph.convolution(graph.input(), {.channels = 32, .kernel = 3, .padding = 1}, "conv");
  const ComputeRoof roof = compute_roof(graph, Precision::fp32, kFastMemory, 16);
  EXPECT_DOUBLE_EQ(roof.products, static_cast<double>(training_flops(graph)) / 100e9);
  EXPECT_EQ(roof.memory, 0);
  EXPECT_EQ(roof.kernels, 2) << "no kernel computes the gradient of the image";
  EXPECT_TRUE(roof.bound_by_memory.empty());
  EXPECT_DOUBLE_EQ(roof.unfilled, 0);
}

TEST(ComputeRoof, LayersWithoutProductsAreBoundByMemory) {
  Graph graph = images(4, 16);
  const Value convolved =
      graph.convolution(graph.input(), {.channels = 16, .kernel = 1, .bias = false}, "conv");
  graph.relu(graph.batch_norm(convolved, BatchNormOptions{}, "bn"));
  const ComputeRoof roof = compute_roof(graph, Precision::fp32, kSlowMemory, 16);
  double bytes = 0;
  for (const Layer& layer : graph.layers())
    bytes += 2 * static_cast<double>(forward_bytes(graph, layer, Precision::fp32));
  EXPECT_NEAR(roof.seconds(), bytes / 10e9, 1e-3 * bytes / 10e9);
  EXPECT_LT(roof.weights, 0.05 * roof.memory)
      << "1,024 weights are few compared with images of 16,384 values";
  EXPECT_EQ(roof.kernels, 6);
  EXPECT_NE(std::ranges::find(roof.bound_by_memory, "batch norm"), roof.bound_by_memory.end());
}

// A direct 3x3 convolution of 8x8 pixels multiplies 22 x 22 of 24 x 24 taps with pixels; Winograd's
// F(4x4, 3x3) executes 36 products where a direct convolution has 16 x 9 = 144.
TEST(ExecutedFlops, CountProductsWithPixelsAndTilesOfWinograd) {
  Graph graph = images(4, 16);
  const Value hidden = graph.convolution(graph.input(), {.channels = 16, .kernel = 3, .padding = 1}, "first");
  const Value value = graph.convolution(hidden, {.channels = 16, .kernel = 3, .padding = 1}, "second");
  graph.classify(graph.linear(value, {.features = 10}, "fc"));
  const double of_linear = static_cast<double>(flops_of(graph, graph.layers().back()).total());
  const double of_convolutions = static_cast<double>(training_flops(graph)) - of_linear;
  KernelChoices direct(ChooseBy::name, "direct"), tiled(ChooseBy::name, "tiled winograd");
  EXPECT_NEAR(executed_flops(graph, Network(graph, {.choices = &direct}).nodes()),
              of_convolutions * (22 * 22) / (24 * 24) + of_linear, 10);
  const Network network(graph, {.choices = &tiled});
  if (network.nodes()[0].layer->choice(Direction::forward) != "tiled winograd")
    GTEST_SKIP() << "needs AVX2 or AVX-512";
  EXPECT_DOUBLE_EQ(executed_flops(graph, network.nodes()), of_convolutions / 4 + of_linear);
}

class WinogradLayer final : public PlannedLayer {
 public:
  std::string choice(Direction) const override { return "tiled winograd"; }
  void forward(const Pass&, const LayerMemory&) override {}
};

// The product of the operations and the tiles does not fit 64 bits.
TEST(ExecutedFlops, CountTilesOfWinogradForLargeImages) {
  Graph graph({.batch = 1, .height = 8192, .width = 8192, .channels = 64, .classes = 10});
  graph.convolution(graph.input(), {.channels = 64, .kernel = 3, .padding = 1}, "conv");
  PlannedNode node;
  node.layer = std::make_unique<WinogradLayer>();
  node.layer_index = 0;
  EXPECT_EQ(executed_flops(graph, node).forward, flops_of(graph, graph.layers()[0]).forward / 4);
}

// A larger batch shares the reads of the weights.
TEST(ComputeRoof, WeightsDominateTheTrafficOfASmallBatch) {
  const auto roof_of_batch = [](std::int64_t batch) {
    Graph graph = images(batch, 16);
    graph.linear(graph.input(), {.features = 1024}, "fc");
    return compute_roof(graph, Precision::fp32, kSlowMemory, 16);
  };
  const ComputeRoof one = roof_of_batch(1), many = roof_of_batch(64);
  EXPECT_GT(one.weights, 0.95 * one.seconds());
  EXPECT_NEAR(many.weights, one.weights, 0.01 * one.weights);
  EXPECT_LT(many.seconds(), 1.2 * one.seconds());
}

TEST(ComputeRoof, ReportsChannelsThatFillNoVector) {
  Graph graph = images(4, 16);
  const Value wide = graph.convolution(graph.input(), {.channels = 32, .kernel = 3, .padding = 1}, "wide");
  graph.convolution(wide, {.channels = 17, .kernel = 3, .padding = 1}, "odd");
  const ComputeRoof roof = compute_roof(graph, Precision::fp32, kFastMemory, 16);
  EXPECT_EQ(roof.unfilled_layer, "odd");
  EXPECT_EQ(roof.unfilled_channels, 17);
  EXPECT_GT(roof.unfilled, 0.2);
  EXPECT_LT(roof.unfilled, 15.0 / 32);
}

}  // namespace
}  // namespace lockstep
