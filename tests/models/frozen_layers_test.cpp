// SPDX-License-Identifier: Apache-2.0
//
// Frozen layers keep their bits, need no training memory or time, and do not change the gradients of other
// layers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/network_state.h"
#include "models/networks/networks.h"
#include "models/work.h"
#include "tests/models/network_fixture.h"
#include "tests/models/slopes.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using Prefixes = std::vector<std::string>;

constexpr GraphInput kSmall{.batch = 4, .height = 16, .width = 16, .channels = 3, .classes = 5};

std::function<void(Graph&)> frozen(const std::function<void(Graph&)>& build, const Prefixes& prefixes) {
  return [=](Graph& graph) {
    build(graph);
    for (const std::string& prefix : prefixes) EXPECT_GT(graph.freeze(prefix), 0) << prefix;
  };
}

void plain_cnn(Graph& graph) { cnn(graph, {.batch_norm = false}); }
void small_resnet(Graph& graph) { cifar_resnet(graph, 1); }

std::map<std::string, std::vector<float>> state_of(Network& network) {
  std::map<std::string, std::vector<float>> state;
  const StateSnapshot snapshot(network);
  for (const auto& entry : snapshot.entries()) state[entry.name] = entry.values;
  return state;
}

// Sets running statistics that equal no batch's.
void spread_statistics(Network& network) {
  StateCopy state;
  const StateSnapshot snapshot(network);
  for (StateCopy::Tensor tensor : snapshot.entries()) {
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const float wave = std::sin(static_cast<float>(i));
      if (tensor.name.ends_with("running_mean")) tensor.values[i] = 0.3f * wave;
      if (tensor.name.ends_with("running_var")) tensor.values[i] = 1.2f + 0.5f * wave;
    }
    state.tensors.push_back(std::move(tensor));
  }
  StateWriter writer(network.device(), state);
  network.visit_state(writer);
}

TEST(FrozenLayers, FreezeMatchesWholeComponentsOfNames) {
  Graph graph(kSmall);
  Value x = graph.convolution(graph.input(), {.channels = 4}, "layer1.conv");
  x = graph.convolution(x, {.channels = 4}, "layer10.conv");
  x = graph.dropout(x, 0.5, "layer1.dropout");
  const Value y = graph.convolution(x, {.channels = 4}, "layer1");
  graph.classify(graph.linear(y, {.features = 5}, "fc"));
  EXPECT_EQ(graph.freeze("layer"), 0);
  EXPECT_EQ(graph.freeze(""), 0);
  EXPECT_EQ(graph.freeze("layer1.con"), 0);
  EXPECT_EQ(graph.freeze("layer1.dropout"), 0) << "a dropout layer has no parameters";
  EXPECT_TRUE(graph.wants_gradient(x));
  EXPECT_EQ(graph.freeze("layer1"), 2);
  EXPECT_FALSE(graph.layers()[1].frozen);
  EXPECT_TRUE(graph.wants_gradient(x)) << "layer10 is still trained";
  EXPECT_EQ(graph.freeze("layer10"), 1);
  EXPECT_FALSE(graph.wants_gradient(y));
  EXPECT_TRUE(graph.wants_gradient(graph.logits()));
}

TEST(FrozenLayers, BatchNormCanBeFrozenByItsOptions) {
  NetworkFixture fixture(kSmall, [](Graph& graph) {
    const Value x = graph.batch_norm(graph.input(), {.frozen = true}, "first");
    const Value y = graph.batch_norm(x, x, {.frozen = true}, "second");
    graph.classify(graph.linear(y, {.features = 5}, "fc"));
  });
  for (const Parameter& parameter : fixture.network().parameters())
    EXPECT_TRUE(parameter.name.starts_with("fc.")) << parameter.name;
  EXPECT_TRUE(fixture.network().statistics().empty());
}

TEST(FrozenLayers, DoNotChangeGradientsOfOtherLayers) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    NetworkFixture whole(kSmall, plain_cnn, 1, Recompute::nothing, precision);
    whole.forward_backward();
    const auto expected = whole.plain_gradients();
    for (const Prefixes& prefixes : {Prefixes{"conv1"}, Prefixes{"conv2"}, Prefixes{"conv1", "conv2", "fc1"},
                                     Prefixes{"fc2"}, Prefixes{"conv1", "fc1"}}) {
      SCOPED_TRACE(prefixes.back());
      NetworkFixture part(kSmall, frozen(plain_cnn, prefixes), 1, Recompute::nothing, precision);
      part.forward_backward();
      const auto gradients = part.plain_gradients();
      EXPECT_EQ(gradients.size(), expected.size() - 2 * prefixes.size());
      for (const auto& [name, values] : gradients) EXPECT_EQ(values, expected.at(name)) << name;
    }
  }
}

// Frozen batch norm is a different function from trained batch norm: the tests compare slopes on both sides
// of it and beside it.
TEST(FrozenLayers, GradientsBelowThemMatchFiniteDifferences) {
  for (const Prefixes& prefixes : {Prefixes{"bn1"}, Prefixes{"layer2"}, Prefixes{"layer2.0.downsample"},
                                   Prefixes{"layer1.0.bn2", "layer3"}, Prefixes{"conv1", "bn1", "layer1"}}) {
    SCOPED_TRACE(prefixes.back());
    NetworkFixture fixture(kSmall, frozen(small_resnet, prefixes));
    spread_statistics(fixture.network());
    fixture.forward_backward();
    EXPECT_LT(slope_error(fixture, fixture.network().parameters()), 0.1);
  }
}

TEST(FrozenLayers, KeepTheirBits) {
  for (const Recompute recompute : {Recompute::nothing, Recompute::blocks}) {
    const Prefixes prefixes = {"conv1", "bn1", "layer1", "layer3.0.bn1"};
    NetworkFixture fixture(kSmall, frozen(small_resnet, prefixes), 1, recompute);
    spread_statistics(fixture.network());
    const auto before = state_of(fixture.network());
    const auto optimizer = make_optimizer(fixture.trained_memory(), AdamWOptions{.weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      fixture.forward_backward();
      optimizer->step(fixture.stream(), 0.1);
    }
    fixture.network().copy_statistics(fixture.stream());
    int changed = 0, same = 0;
    for (const auto& [name, values] : state_of(fixture.network())) {
      const bool is_frozen = std::ranges::any_of(
          prefixes, [&](const std::string& prefix) { return name.starts_with(prefix + "."); });
      EXPECT_EQ(values == before.at(name), is_frozen) << name;
      ++(is_frozen ? same : changed);
    }
    EXPECT_GT(changed, 0);
    EXPECT_EQ(same, 1 + 4 + 2 * (1 + 4) + 4);
  }
}

TEST(FrozenLayers, ComputeTheSameInTrainingAndEvaluation) {
  NetworkFixture fixture(kSmall, frozen(small_resnet, {"conv1", "bn1", "layer1", "layer2", "layer3"}));
  spread_statistics(fixture.network());
  const double training = fixture.forward();
  fixture.network().forward(fixture.input(), {.stream = fixture.stream(), .mode = Mode::evaluation});
  const LossSums sums = fixture.network().loss(fixture.stream());
  EXPECT_FLOAT_EQ(static_cast<float>(training), sums.loss / static_cast<float>(kSmall.batch));
}

// Everything before the head is frozen: no backward, and no memory kept for it.
TEST(FrozenLayers, BackwardEndsAtTheLowestTrainedLayer) {
  struct Passes final : LayerObserver {
    void layer_ran(std::size_t node, Direction direction, std::int64_t, std::int64_t) override {
      if (direction != Direction::forward) backward.push_back(node);
    }
    std::vector<std::size_t> backward;
  } passes;
  const Prefixes prefixes = {"conv1", "bn1", "layer1", "layer2", "layer3"};
  NetworkFixture fixture(kSmall, frozen(small_resnet, prefixes));
  fixture.forward_backward();
  fixture.network().backward({.stream = fixture.stream(), .observer = &passes});
  const std::size_t head = fixture.network().nodes().size() - 1;
  ASSERT_FALSE(passes.backward.empty());
  for (const std::size_t node : passes.backward) EXPECT_EQ(node, head);

  NetworkFixture whole(kSmall, small_resnet);
  const MemoryPlan all = whole.network().memory(), part = fixture.network().memory();
  EXPECT_LT(part.activations, all.activations / 2);
  EXPECT_EQ(part.statistics, 0u);
  EXPECT_GE(part.frozen, all.parameters + all.statistics / 3 - part.parameters);
  EXPECT_EQ(part.gradients, part.parameters);
  Graph graph(kSmall);
  frozen(small_resnet, prefixes)(graph);
  EXPECT_EQ(Network::planned_memory(graph, {}).frozen, part.frozen);
  std::int64_t forward = 0;
  for (const Layer& layer : graph.layers()) forward += flops_of(graph, layer).forward;
  const std::int64_t of_head = flops_of(graph, graph.head()).forward;
  EXPECT_EQ(training_flops(graph), forward + of_head);
}

TEST(FrozenLayers, AreSavedAndLoaded) {
  const TemporaryFolder folder("frozen_layers");
  const auto file = folder.path() / "state.safetensors";
  NetworkFixture whole(kSmall, small_resnet, 1);
  spread_statistics(whole.network());
  StateSnapshot(whole.network()).save(file);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    NetworkFixture part(kSmall, frozen(small_resnet, {"conv1", "bn1", "layer2"}), 2, Recompute::nothing,
                        precision);
    load_state(part.network(), file);
    EXPECT_EQ(state_of(part.network()), state_of(whole.network()));
    NetworkFixture trained(kSmall, small_resnet, 2, Recompute::nothing, precision);
    load_state(trained.network(), file);
    for (NetworkFixture* each : {&part, &trained})
      each->network().forward(each->input(), {.stream = each->stream(), .mode = Mode::evaluation});
    EXPECT_FLOAT_EQ(part.network().loss(part.stream()).loss, trained.network().loss(trained.stream()).loss);
  }
}

}  // namespace
}  // namespace lockstep
