// SPDX-License-Identifier: Apache-2.0
#include "models/network.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "models/networks/networks.h"
#include "tests/message_of.h"
#include "tests/models/network_fixture.h"
#include "tests/models/slopes.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

struct NetworkCase {
  const char* name;
  GraphInput input;
  std::function<void(Graph&)> build;
};

// Values used two and three times, a value added to itself, and a pre-activation shortcut: hard cases for
// memory sharing.
void entangled(Graph& graph) {
  const Value x = graph.convolution(graph.input(), {.channels = 8, .kernel = 3, .padding = 1}, "stem");
  const Value a = graph.relu(x);
  const Value b = graph.convolution(a, {.channels = 8, .kernel = 3, .padding = 1}, "b");
  const Value c = graph.add(a, graph.batch_norm(b, {.activation = Activation::relu}, "c"));
  const Value d = graph.add(c, a);
  const Value e = graph.add(d, d);
  const Value f = graph.relu(graph.add(graph.relu(e), x));
  graph.classify(graph.linear(graph.pooling(f, {.kind = PoolingKind::average, .global = true}),
                              {.features = graph.input_shape().classes}, "fc"));
}

// Layer norm over images, in another layout than its input's, and over features; batch norm of features;
// smooth activations, after convolutions and alone.
void smooth(Graph& graph) {
  Value x = graph.convolution(graph.input(), {.channels = 16, .kernel = 3, .padding = 1}, "conv1");
  x = graph.activation(graph.layer_norm(x, {}, "ln1"), Activation::gelu);
  x = graph.add(x, graph.softmax(graph.convolution(x, {.channels = 16}, "gate")));
  x = graph.activation(graph.convolution(x, {.channels = 8, .kernel = 3, .padding = 1}, "conv2"),
                       Activation::tanh);
  x = graph.batch_norm(graph.flatten(x), {}, "bn");
  const Value y = graph.activation(graph.linear(x, {.features = 24}, "fc1"), Activation::gelu);
  x = graph.activation(graph.linear(graph.layer_norm(y, {}, "ln2"), {.features = 24}, "fc2"),
                       Activation::sigmoid);
  graph.classify(graph.linear(graph.add(x, y), {.features = graph.input_shape().classes}, "fc3"));
}

const GraphInput kSmall{.batch = 6, .height = 8, .width = 8, .channels = 3, .classes = 5};

GraphInput small_with(Loss loss, std::int64_t classes) {
  GraphInput input = kSmall;
  input.loss = loss;
  input.classes = classes;
  return input;
}

GraphInput with_masks() {
  GraphInput input = kSmall;
  input.masks = true;
  return input;
}

// Concatenations of channels that fill no block, of three values, and of the input; a factor of 4.
void uneven_masks(Graph& graph) {
  const Value a = graph.convolution(graph.input(), {.channels = 5, .kernel = 3, .padding = 1}, "a");
  const Value small = graph.pooling(graph.activation(a, Activation::tanh), {.kernel = 4, .stride = 4});
  const Value b = graph.activation(graph.convolution(small, {.channels = 7}, "b"), Activation::gelu);
  const Value joined = graph.concatenate(graph.concatenate(graph.upsample(b, 4), a), graph.input());
  const Value c = graph.convolution(joined, {.channels = 16, .kernel = 3, .padding = 1}, "c");
  const Value d = graph.activation(graph.concatenate(c, joined), Activation::sigmoid);
  graph.classify(graph.convolution(d, {.channels = graph.input_shape().classes}, "head"));
}

void single_output(Graph& graph) {
  const Value x = graph.activation(graph.linear(graph.input(), {.features = 16}, "fc1"), Activation::tanh);
  graph.classify(graph.linear(x, {.features = 1}, "fc2"));
}

std::vector<NetworkCase> network_cases() {
  return {{"mlp", kSmall, [](Graph& graph) { mlp(graph); }},
          {"cnn", kSmall, [](Graph& graph) { cnn(graph); }},
          {"cnn without batch norm", kSmall, [](Graph& graph) { cnn(graph, {.batch_norm = false}); }},
          {"mlp with dropout", kSmall, [](Graph& graph) { mlp(graph, {.dropout = 0.4}); }},
          {"cnn with dropout", kSmall, [](Graph& graph) { cnn(graph, {.dropout = 0.3}); }},
          {"resnet", kSmall, [](Graph& graph) { cifar_resnet(graph, 1); }},
          {"entangled", kSmall, entangled},
          {"smooth", kSmall, smooth},
          {"binary cross-entropy", small_with(Loss::binary_cross_entropy, 5), smooth},
          {"mean squared error", small_with(Loss::mean_squared_error, 5), smooth},
          {"single output", small_with(Loss::binary_cross_entropy, 2), single_output},
          {"unet", with_masks(), [](Graph& graph) { unet(graph, {.width = 16, .depth = 2}); }},
          {"masks", with_masks(), uneven_masks},
          {"single number", small_with(Loss::mean_squared_error, 5), single_output}};
}

// The memory plan, made without the network, equals what a network, its gradients and its optimizers
// allocate.
TEST(Network, AllocatesThePlannedMemory) {
  for (const NetworkCase& test : network_cases()) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      NetworkFixture fixture(test.input, test.build, 1, Recompute::nothing, precision);
      Graph graph(test.input);
      test.build(graph);
      const MemoryPlan planned = Network::planned_memory(graph, {.precision = precision});
      const MemoryPlan& taken = fixture.network().memory();
      EXPECT_EQ(planned.activations, taken.activations) << test.name;
      EXPECT_EQ(planned.workspace, taken.workspace) << test.name;
      EXPECT_EQ(planned.parameters, fixture.network().values().size_bytes()) << test.name;
      EXPECT_EQ(planned.weight_copies, fixture.network().weight_copies().bytes()) << test.name;
      EXPECT_EQ(planned.statistics, 3 * fixture.network().statistics().size_bytes()) << test.name;
      std::size_t gradients = 0;
      for (const FlatRange& range : fixture.gradient_ranges()) gradients += range.bytes();
      EXPECT_EQ(planned.gradients, gradients) << test.name;
      for (const OptimizerKind& kind : optimizer_kinds()) {
        EXPECT_EQ(kind.state_bytes(planned.parameters),
                  kind.make(fixture.trained_memory(), {}, {})->state().size_bytes());
      }
    }
  }
}

// Each parameter separately, so that an error in a small one shows.
TEST(Network, GradientsMatchFiniteDifferences) {
  Thinning thinning;
  for (const NetworkCase& test : network_cases()) {
    NetworkFixture fixture(test.input, test.build);
    fixture.forward_backward();
    for (const Parameter& parameter : fixture.network().parameters()) {
      if (!thinning.takes()) continue;
      EXPECT_LT(slope_error(fixture, {&parameter, 1}), 0.1) << test.name << ", " << parameter.name;
    }
  }
}

// With five channels layouts may have padding, which every layer keeps at zero: the next one multiplies it
// with weights that no checkpoint holds.
TEST(Network, GradientsOfPaddingAreZero) {
  for (const Activation activation :
       {Activation::relu, Activation::relu6, Activation::sigmoid, Activation::tanh, Activation::gelu}) {
    NetworkFixture fixture(kSmall, [&](Graph& graph) {
      Value x = graph.convolution(graph.input(), {.channels = 5, .kernel = 3, .padding = 1}, "conv1");
      x = graph.convolution(graph.activation(x, activation), {.channels = 5, .kernel = 3, .padding = 1},
                            "conv2");
      graph.classify(graph.linear(graph.activation(x, activation), {.features = 5}, "fc"));
    });
    fixture.forward_backward();
    const auto sum_of_squares = [](std::span<const float> values) {
      return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(),
                                   [](double value) { return value * value; });
    };
    double owned = 0;
    for (const auto& [name, values] : fixture.plain_gradients()) owned += sum_of_squares(values);
    EXPECT_NEAR(sum_of_squares(fixture.gradients()), owned, 1e-12 * owned) << word_of(activation);
  }
}

// Compares with a network whose tensors share no memory, and again after the arena no longer holds zeros.
TEST(Network, SharedMemoryChangesNothing) {
  for (const NetworkCase& test : network_cases()) {
    for (const Recompute recompute : {Recompute::nothing, Recompute::blocks}) {
      NetworkFixture shared(test.input, test.build, 1, recompute);
      NetworkFixture unshared(test.input, test.build, 1, recompute, Precision::fp32, MemorySharing::none);
      EXPECT_LT(shared.network().memory().activations, unshared.network().memory().activations) << test.name;
      for (int repeat = 0; repeat < 2; ++repeat) {
        EXPECT_EQ(shared.forward_backward(), unshared.forward_backward()) << test.name;
        EXPECT_TRUE(std::ranges::equal(shared.gradients(), unshared.gradients())) << test.name;
      }
    }
  }
}

TEST(Network, AccumulatingTwiceDoublesGradients) {
  for (const NetworkCase& test : network_cases()) {
    NetworkFixture fixture(test.input, test.build);
    fixture.forward_backward();
    const std::vector<float> once(fixture.gradients().begin(), fixture.gradients().end());
    fixture.forward_backward(Write::accumulate);
    for (std::size_t i = 0; i < once.size(); ++i) {
      ASSERT_FLOAT_EQ(fixture.gradients()[i], 2 * once[i]) << test.name << ", element " << i;
    }
  }
}

struct Recorder : GradientListener {
  std::vector<std::size_t> order;
  void gradient_ready(std::size_t index) override { order.push_back(index); }
};

TEST(Network, AnnouncesEveryGradientOnceInArenaOrder) {
  NetworkFixture fixture(kSmall, [](Graph& graph) { cifar_resnet(graph, 1); });
  Recorder recorder;
  fixture.forward_backward(Write::overwrite, &recorder);
  const auto parameters = fixture.network().parameters();
  ASSERT_EQ(recorder.order.size(), parameters.size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(recorder.order[i], i);
    EXPECT_GE(parameters[i].offset, end);
    end = parameters[i].offset + parameters[i].layout.physical_elements();
  }
  EXPECT_EQ(parameters.front().name, "fc.weight");
  EXPECT_EQ(parameters.back().name, "conv1.weight");
}

TEST(Network, EvaluationKeepsTheRunningStatistics) {
  NetworkFixture fixture(kSmall, [](Graph& graph) { cnn(graph); });
  fixture.forward();
  const std::span<float> statistics = fixture.network().statistics();
  const std::vector<float> before(statistics.begin(), statistics.end());
  fixture.network().forward(fixture.input(), {.stream = fixture.stream(), .mode = Mode::evaluation});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), statistics.begin()));
  fixture.forward();
  EXPECT_FALSE(std::equal(before.begin(), before.end(), statistics.begin()));
}

TEST(Network, InitialValuesDependOnTheSeed) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture one(kSmall, build, 1);
  NetworkFixture same(kSmall, build, 1);
  NetworkFixture other(kSmall, build, 2);
  const auto values = [](NetworkFixture& fixture) {
    const std::span<float> all = fixture.network().values();
    return std::vector<float>(all.begin(), all.end());
  };
  EXPECT_EQ(values(one), values(same));
  EXPECT_NE(values(one), values(other));
}

TEST(Network, RefusesAnotherBatchSize) {
  NetworkFixture fixture(kSmall, [](Graph& graph) { mlp(graph); });
  Batch input = fixture.input();
  input.images.shape = {5, 8, 8, 3};
  EXPECT_THROW(fixture.network().forward(input, {.stream = fixture.stream()}), Error);
}

// Without the other ranks, backward would divide this rank's sums by the number of values of all ranks.
TEST(Network, BatchNormPlannedForSeveralRanksNeedsThemInTraining) {
  NetworkFixture fixture(kSmall, [](Graph& graph) { cnn(graph); });
  Graph graph(kSmall);
  cnn(graph);
  Network network(graph, {.batch_norm_ranks = 2});
  const Pass alone{.stream = fixture.stream()};
  expect_parts(message_of([&] { network.forward(fixture.input(), alone); }), {"Pass::across"});
  expect_parts(message_of([&] { network.backward(alone); }), {"Pass::across"});
  EXPECT_NO_THROW(network.forward(fixture.input(), {.stream = fixture.stream(), .mode = Mode::evaluation}));
}

TEST(Network, RefusesAugmentationThatMovesImagesWithoutTheirMasks) {
  NetworkFixture fixture(with_masks(), uneven_masks);
  Graph graph(with_masks());
  uneven_masks(graph);
  for (const Augmentation& augmentation :
       {Augmentation{.crop_padding = 1}, Augmentation{.horizontal_flip = true}, Augmentation{.mixup = 0.2},
        Augmentation{.cutmix = 1}}) {
    EXPECT_THROW(Network(graph, {.augmentation = augmentation}), Error);
  }
  Network network(graph, {.augmentation = {.cutout = 2}});
  EXPECT_NO_THROW(network.forward(fixture.input(), {.stream = fixture.stream()}));
}

TEST(Network, RefusesALabelSmoothingThatIsNotAFraction) {
  Graph graph(kSmall);
  mlp(graph);
  for (const double fraction : {-0.1, 1.1})
    EXPECT_THROW(Network(graph, {.label_smoothing = fraction}), Error);
}

TEST(Network, NeedsLogits) {
  Graph graph(kSmall);
  EXPECT_THROW(Network(graph, {}), ConfigError);
}

}  // namespace
}  // namespace lockstep
