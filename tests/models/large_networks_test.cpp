// SPDX-License-Identifier: Apache-2.0
//
// Full-size networks, compared with finite differences of their loss.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"
#include "tests/models/slopes.h"

namespace lockstep {
namespace {

// Moves activations' inputs away from the kink, which finite differences of deep networks cannot cross. A few
// per cent are still cut off.
void open_activations(Network& network) {
  const std::string mean = ".running_mean";
  const StateSnapshot snapshot(network);
  for (const auto& tensor : snapshot.entries()) {
    if (!tensor.name.ends_with(mean)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - mean.size()) + ".bias";
    const auto shift = std::ranges::find(network.parameters(), name, &Parameter::name);
    ASSERT_NE(shift, network.parameters().end()) << name;
    std::fill_n(shift->value, shift->layout.shape().elements(), 2.0f);
  }
}

struct LargeNetwork {
  const char* name;
  std::int64_t size;  // of the images, in pixels
};
class LargeNetworks : public testing::TestWithParam<LargeNetwork> {};

TEST_P(LargeNetworks, HaveTheGradientsOfTheirLoss) {
  const auto& [name, size] = GetParam();
  const GraphInput input{.batch = 8, .height = size, .width = size, .channels = 3, .classes = 5};
  NetworkFixture fixture(input, [&](Graph& graph) { build_network(graph, {.name = name}); });
  open_activations(fixture.network());
  fixture.forward_backward();
  EXPECT_LT(slope_error(fixture, fixture.network().parameters()), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Networks, LargeNetworks,
                         testing::Values(LargeNetwork{"resnet18", 16}, LargeNetwork{"resnet34", 16},
                                         LargeNetwork{"resnet50", 16}, LargeNetwork{"vgg11_bn", 32},
                                         LargeNetwork{"mobilenet_v2", 32}),
                         [](const auto& network) { return std::string(network.param.name); });

}  // namespace
}  // namespace lockstep
