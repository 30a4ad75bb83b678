// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gtest/gtest.h>

#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

struct RecomputeCase {
  const char* name;
  std::function<void(Graph&)> build;
};

// All contents of a block: an activation within its convolution and a separate one, pooling, values used
// twice, dropout, a sum that ends the block, and a second block directly after it.
void mixture(Graph& graph) {
  Value x = graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1}, "stem");
  for (const std::string name : {"one", "two"}) {
    const BlockScope scope(graph);
    const Value a = graph.relu(graph.convolution(x, {.channels = 8, .kernel = 3, .padding = 1}, name + ".a"));
    const Value b = graph.batch_norm(a, {}, name + ".b");
    const Value c = graph.relu(graph.add(b, a));
    const Value d = graph.pooling(c, {.kernel = 3, .stride = 1, .padding = 1});
    const Value e = graph.convolution(d, {.channels = 8, .kernel = 1}, name + ".e");
    x = graph.batch_norm(graph.add(e, c), x, {.activation = Activation::relu6}, name + ".f");
  }
  const Value features = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
  Value y = features;
  {
    const BlockScope scope(graph);
    y = graph.relu(graph.linear(y, {.features = 16}, "fc1"));
    y = graph.linear(graph.dropout(y, 0.3, "mixed"), {.features = 16}, "fc2");
  }
  graph.classify(graph.linear(graph.relu(y), {.features = graph.input_shape().classes}, "fc3"));
}

std::vector<RecomputeCase> recompute_cases() {
  return {{"resnet", [](Graph& graph) { cifar_resnet(graph, 2); }},
          {"mobilenet", [](Graph& graph) { mobilenet_v2(graph); }},
          {"mixture", mixture}};
}

const GraphInput kRecomputeInput{.batch = 8, .height = 16, .width = 16, .channels = 3, .classes = 5};

// Three steps of gradient descent: values, statistics and gradients must have the same bits.
TEST(Recompute, ChangesNoBit) {
  for (const RecomputeCase& test : recompute_cases()) {
    SCOPED_TRACE(test.name);
    NetworkFixture kept(kRecomputeInput, test.build);
    NetworkFixture again(kRecomputeInput, test.build, 1, Recompute::blocks);
    for (int step = 0; step < 3; ++step) {
      const Write write = step == 2 ? Write::accumulate : Write::overwrite;
      EXPECT_EQ(kept.forward_backward(write), again.forward_backward(write));
      ASSERT_TRUE(std::ranges::equal(kept.gradients(), again.gradients())) << "step " << step;
      ASSERT_TRUE(std::ranges::equal(kept.network().statistics(), again.network().statistics()))
          << "step " << step;
      for (NetworkFixture* fixture : {&kept, &again}) {
        const std::span<float> values = fixture->network().values();
        for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.01f * fixture->gradients()[i];
      }
    }
  }
}

TEST(Recompute, NeedsLessMemory) {
  for (const RecomputeCase& test : recompute_cases()) {
    NetworkFixture kept(kRecomputeInput, test.build);
    NetworkFixture again(kRecomputeInput, test.build, 1, Recompute::blocks);
    const MemoryPlan& memory = again.network().memory();
    EXPECT_LT(memory.activations, kept.network().memory().activations) << test.name;
    EXPECT_EQ(memory.activations_kept, kept.network().memory().activations) << test.name;
  }
}

TEST(Recompute, AGraphWithoutBlocksIsUnchanged) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture kept(kRecomputeInput, build);
  NetworkFixture again(kRecomputeInput, build, 1, Recompute::blocks);
  EXPECT_EQ(again.network().memory().activations, kept.network().memory().activations);
}

}  // namespace
}  // namespace lockstep
