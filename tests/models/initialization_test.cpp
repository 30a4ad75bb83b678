// SPDX-License-Identifier: Apache-2.0
//
// Weights are initialised like PyTorch's and torchvision's. torch.nn.init computes fans from the shape [out,
// in / groups, k, k]: fan_in is divided by groups, fan_out is not.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

double deviation_of(const std::vector<float>& values) {
  double square = 0;
  for (const float value : values) square += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(square / static_cast<double>(values.size()));
}

TEST(Initialization, ConvolutionsOfNetworksAreHeNormalByFanOut) {
  for (const char* name : {"mobilenet_v2", "resnet20"}) {
    NetworkFixture fixture(kCifar, [&](Graph& graph) { build_network(graph, {.name = name}); });
    const StateSnapshot state(fixture.network());
    int depthwise = 0;
    for (const auto& [tensor, scope, shape, values] : state.entries()) {
      if (shape.rank() != 4) continue;
      const auto fan_out = static_cast<double>(shape[0] * shape[2] * shape[3]);
      const double expected = std::sqrt(2 / fan_out);
      const double five_sigma = 5 * expected / std::sqrt(2 * static_cast<double>(values.size()));
      EXPECT_NEAR(deviation_of(values), expected, five_sigma) << name << " " << tensor;
      depthwise += shape[1] == 1 ? 1 : 0;
    }
    EXPECT_EQ(depthwise, name == std::string("mobilenet_v2") ? 17 : 0);
  }
}

TEST(Initialization, OtherConvolutionsAreUniformByFanIn) {
  NetworkFixture fixture(
      {.batch = 1, .height = 8, .width = 8, .channels = 32, .classes = 10}, [](Graph& graph) {
        const Value x =
            graph.convolution(graph.input(), {.channels = 64, .kernel = 3, .groups = 4}, "grouped");
        graph.classify(graph.linear(x, {.features = 10}, "fc"));
      });
  const StateSnapshot state(fixture.network());
  const double bound = 1 / std::sqrt(32 / 4 * 9);
  for (const auto& [tensor, scope, shape, values] : state.entries()) {
    if (!tensor.starts_with("grouped")) continue;
    const auto [least, largest] = std::ranges::minmax(values);
    EXPECT_GE(static_cast<double>(least), -bound) << tensor;
    EXPECT_LE(static_cast<double>(largest), bound) << tensor;
    EXPECT_GT(static_cast<double>(largest - least), 1.8 * bound) << tensor;
  }
}

TEST(Initialization, UniformBoundsFollowTheFansAndBiasesAreZero) {
  constexpr double kIn = 64, kOut = 192;
  for (const auto& [initialization, bound] : {std::pair{Initialization::he_uniform, std::sqrt(6 / kIn)},
                                              {Initialization::glorot_uniform, std::sqrt(6 / (kIn + kOut))},
                                              {Initialization::zeros, 0.0}}) {
    NetworkFixture fixture({.batch = 1, .height = 8, .width = 8, .channels = 1, .classes = 192},
                           [initialization = initialization](Graph& graph) {
                             graph.classify(graph.linear(
                                 graph.input(), {.features = 192, .initialization = initialization}, "fc"));
                           });
    const StateSnapshot state(fixture.network());
    for (const auto& [tensor, scope, shape, values] : state.entries()) {
      const auto [least, largest] = std::ranges::minmax(values);
      const double expected = tensor == "fc.bias" ? 0 : bound;
      EXPECT_GE(static_cast<double>(least), -expected) << tensor;
      EXPECT_LE(static_cast<double>(largest), expected) << tensor;
      EXPECT_GE(static_cast<double>(largest - least), 1.9 * expected) << tensor;
    }
  }
}

}  // namespace
}  // namespace lockstep
