// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "models/networks/layers.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"
#include "tests/thinning.h"

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

// As a configuration describes it, with dropout and layers that share memory.
void described_network(Graph& graph) {
  static const std::vector<LayerSpec> layers = [] {
    const auto layer = [](const char* kind, std::map<std::string, LayerValue, std::less<>> values) {
      return LayerSpec{.kind = kind, .values = std::move(values)};
    };
    std::vector<LayerSpec> all;
    for (const std::int64_t channels : {8, 8, 16}) {
      all.push_back(layer("convolution", {{"channels", channels}, {"kernel", std::int64_t{3}}}));
      all.push_back(layer("batch_norm", {}));
      all.push_back(layer("activation", {{"activation", std::string("tanh")}}));
    }
    all.push_back(layer("dropout", {{"rate", 0.25}}));
    all.push_back(layer("flatten", {}));
    all.push_back(layer("dense", {{"features", std::int64_t{24}}}));
    all.push_back(layer("layer_norm", {{"activation", std::string("relu")}}));
    all.push_back(layer("dense", {}));
    name_layers(all);
    return all;
  }();
  build_layers(graph, layers);
}

// Networks with and without blocks.
std::vector<RecomputeCase> segment_cases() {
  std::vector<RecomputeCase> cases = recompute_cases();
  cases.push_back({"cnn", [](Graph& graph) { build_network(graph, {.name = "cnn", .dropout = 0.3}); }});
  cases.push_back({"mlp", [](Graph& graph) { build_network(graph, {.name = "mlp", .dropout = 0.3}); }});
  cases.push_back({"described", described_network});
  return cases;
}

// The largest network: only planned in most tests.
const RecomputeCase kVgg{"vgg", [](Graph& graph) { build_network(graph, {.name = "vgg11_bn"}); }};

std::vector<RecomputeCase> planned_cases() {
  std::vector<RecomputeCase> cases = segment_cases();
  cases.push_back(kVgg);
  return cases;
}

const GraphInput kRecomputeInput{.batch = 2, .height = 32, .width = 32, .channels = 3, .classes = 5};

// Steps of gradient descent, of which the last adds to the gradients: losses, statistics and gradients must
// have the same bits as without recomputation. In half precision the values stay, so one step less shows the
// same.
void expect_same_bits(const RecomputeCase& test, const std::vector<Recompute>& recomputations,
                      Precision precision = Precision::fp32) {
  NetworkFixture kept(kRecomputeInput, test.build, 1, Recompute::nothing, precision);
  std::vector<std::unique_ptr<NetworkFixture>> networks;
  for (const Recompute& recompute : recomputations)
    networks.push_back(
        std::make_unique<NetworkFixture>(kRecomputeInput, test.build, 1, recompute, precision));
  const auto descend = [&](NetworkFixture& fixture) {
    if (precision != Precision::fp32) return;
    const std::span<float> values = fixture.network().values(), gradients = fixture.gradients();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.01f * gradients[i];
  };
  const int steps = precision == Precision::fp32 ? 3 : 2;
  for (int step = 0; step < steps; ++step) {
    const Write write = step == steps - 1 ? Write::accumulate : Write::overwrite;
    const double loss = kept.forward_backward(write);
    const auto gradients = kept.plain_gradients();
    for (std::size_t i = 0; i < networks.size(); ++i) {
      SCOPED_TRACE(
          fmt::format("{}, recomputation {}, step {}", test.name, described(recomputations[i]), step));
      NetworkFixture& again = *networks[i];
      EXPECT_EQ(again.forward_backward(write), loss);
      ASSERT_EQ(again.plain_gradients(), gradients);
      ASSERT_TRUE(std::ranges::equal(again.network().statistics(), kept.network().statistics()));
      descend(again);
    }
    descend(kept);
  }
}

TEST(Recompute, ChangesNoBit) {
  for (const RecomputeCase& test : recompute_cases()) expect_same_bits(test, {Recompute::blocks});
}

TEST(Recompute, SegmentsChangeNoBit) {
  Thinning thinning;
  for (const RecomputeCase& test : segment_cases()) {
    std::vector<Recompute> segments;
    for (const int layers : thinning.taken({2, 3, 7})) segments.push_back(Recompute::every(layers));
    if (!segments.empty()) expect_same_bits(test, segments);
  }
  if (thinning.takes()) expect_same_bits(kVgg, {Recompute::every(4)});
}

TEST(Recompute, SegmentsChangeNoBitInHalfPrecision) {
  Thinning thinning;
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const RecomputeCase& test : segment_cases())
      if (thinning.takes()) expect_same_bits(test, {Recompute::every(4)}, precision);
  }
}

Graph recompute_graph(const RecomputeCase& test) {
  GraphInput input = kRecomputeInput;
  input.batch = 32;  // activations are larger than the kernels' workspace
  Graph graph(input);
  test.build(graph);
  return graph;
}

std::size_t activations_with(const Graph& graph, const Recompute& recompute) {
  return Network::planned_memory(graph, {.recompute = recompute}).activations;
}

// Without the workspace of kernels, which differs between processors.
std::size_t values_with(const Graph& graph, const Recompute& recompute) {
  const MemoryPlan memory = Network::planned_memory(graph, {.recompute = recompute});
  return memory.activations - memory.workspace;
}

// Every deep network, also without blocks. A shallow one has one tensor that dominates.
TEST(Recompute, TheLeastMemoryIsThatOfSegments) {
  for (const RecomputeCase& test : planned_cases()) {
    const Graph graph = recompute_graph(test);
    const std::size_t kept = activations_with(graph, Recompute::nothing);
    const Recompute chosen = Network::chosen_recompute(graph, {}, 0);
    const std::size_t least = activations_with(graph, chosen);
    EXPECT_LE(least, kept) << test.name;
    if (graph.layers().size() > 12) {
      EXPECT_LT(values_with(graph, chosen), values_with(graph, Recompute::nothing) / 10 * 9) << test.name;
    }
    EXPECT_LE(least, activations_with(graph, Recompute::blocks)) << test.name;
    for (const int layers : {2, 3, 5, 8})
      EXPECT_LE(least, activations_with(graph, Recompute::every(layers)) * 11 / 10) << test.name << layers;
  }
}

TEST(Recompute, ChoosesNothingIfEverythingFits) {
  for (const RecomputeCase& test : planned_cases()) {
    const Graph graph = recompute_graph(test);
    const std::size_t kept = activations_with(graph, Recompute::nothing);
    EXPECT_EQ(Network::chosen_recompute(graph, {}, kept), Recompute::nothing) << test.name;
  }
}

// Less memory costs more work, and the choice fits whenever the least one does.
TEST(Recompute, ChoosesWhatFits) {
  for (const RecomputeCase& test : planned_cases()) {
    const Graph graph = recompute_graph(test);
    const std::size_t kept = activations_with(graph, Recompute::nothing);
    const std::size_t least = activations_with(graph, Network::chosen_recompute(graph, {}, 0));
    for (std::size_t eighths = 0; eighths < 8; ++eighths) {
      const std::size_t limit = least + (kept - least) * eighths / 8;
      EXPECT_LE(activations_with(graph, Network::chosen_recompute(graph, {}, limit)), limit) << test.name;
    }
  }
}

// Where a network has blocks, they cost less work than segments that also recompute between blocks.
TEST(Recompute, ChoosesTheLeastWorkThatFits) {
  const Graph graph = recompute_graph(recompute_cases().front());
  const std::size_t kept = activations_with(graph, Recompute::nothing);
  const auto layers_again = [&](const Recompute& recompute) {
    NetworkFixture fixture(kRecomputeInput, recompute_cases().front().build, 1, recompute);
    return std::ranges::count(fixture.network().nodes(), true, &PlannedNode::recomputed);
  };
  const Recompute chosen = Network::chosen_recompute(graph, {}, kept - 1);
  const Recompute least = Network::chosen_recompute(graph, {}, 0);
  EXPECT_GT(layers_again(chosen), 0);
  EXPECT_LT(layers_again(chosen), layers_again(least));
}

TEST(Recompute, PlanningNeedsAChoiceAndSegmentsWithLayers) {
  const Graph graph = recompute_graph(recompute_cases().front());
  for (const Recompute& refused : {Recompute::automatic, Recompute::least, Recompute::every(0)})
    EXPECT_THROW(activations_with(graph, refused), Error);
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
