// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/text/named_entries.h"
#include "models/network_state.h"
#include "tests/message_of.h"
#include "tests/models/network_fixture.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

const GraphInput kImageNet{.batch = 1, .height = 224, .width = 224, .channels = 3, .classes = 1000};

std::int64_t parameters_of(const Graph& graph, const Layer& layer) {
  const Shape& in = graph.shape(layer.inputs[0]);
  if (const auto* o = std::get_if<ConvolutionOptions>(&layer.operation)) {
    return o->channels * (in[1] / o->groups * o->kernel * o->kernel + (o->bias ? 1 : 0));
  }
  if (const auto* o = std::get_if<LinearOptions>(&layer.operation)) {
    return o->features * (in.elements() / in[0] + (o->bias ? 1 : 0));
  }
  return std::holds_alternative<BatchNormOptions>(layer.operation) ? 2 * in[1] : 0;
}

Graph built(const GraphInput& input, const NetworkChoice& choice) {
  Graph graph(input);
  build_network(graph, choice);
  return graph;
}

std::int64_t parameters(const GraphInput& input, const NetworkChoice& choice) {
  const Graph graph = built(input, choice);
  std::int64_t sum = 0;
  for (const Layer& layer : graph.layers()) sum += parameters_of(graph, layer);
  return sum;
}

const Layer& layer_of(const Graph& graph, const std::string& name) {
  return *std::ranges::find(graph.layers(), name, &Layer::name);
}

TEST(Networks, EveryNameBuilds) {
  for (const std::string& name : names_in(network_table())) {
    if (name == kLayersNetwork) continue;  // described by a configuration
    GraphInput input = kCifar;
    input.masks = name == "unet";
    EXPECT_GE(built(input, {.name = name}).logits().id, 0) << name;
  }
  expect_parts(message_of<ConfigError>([] { built(kCifar, {.name = "resnet21"}); }),
               {"resnet21", "resnet20"});
}

TEST(Networks, HaveTheParameterCountsOfThePapers) {
  EXPECT_EQ(parameters(kCifar, {.name = "resnet18"}), 11'173'962);
  EXPECT_EQ(parameters(kImageNet, {.name = "resnet18"}), 11'689'512);
  EXPECT_EQ(parameters(kImageNet, {.name = "resnet34"}), 21'797'672);
  EXPECT_EQ(parameters(kImageNet, {.name = "resnet50"}), 25'557'032);
  EXPECT_EQ(parameters(kImageNet, {.name = "vgg11_bn"}), 132'868'840);
  EXPECT_EQ(parameters(kImageNet, {.name = "mobilenet_v2"}), 3'504'872);
}

TEST(Networks, UnetHasAnOutputForEachPixelOfADatasetWithMasks) {
  GraphInput input = kCifar;
  input.masks = true;
  const Graph graph = built(input, {.name = "unet"});
  EXPECT_EQ(graph.shape(graph.logits()), (Shape{32 * 32, 10}));
  EXPECT_EQ(graph.head().name, "head");
  expect_parts(message_of<ConfigError>([] { built(kCifar, {.name = "unet"}); }),
               {"[1, 10, 32, 32]", "masks"});
  expect_parts(message_of<ConfigError>([&] { built(input, {.name = "resnet18"}); }), {"[1, 10]", "unet"});
  input.width = 36;
  expect_parts(message_of<ConfigError>([&] { built(input, {.name = "unet"}); }),
               {"model.unet.depth = 3", "multiples of 8", "36"});
}

TEST(Networks, ThePlannedNetworkHasTheParametersOfTheGraph) {
  NetworkFixture fixture(kCifar, [](Graph& graph) { mobilenet_v2(graph); });
  std::int64_t planned = 0;
  for (const Parameter& parameter : fixture.network().parameters())
    planned += parameter.layout.shape().elements();
  EXPECT_EQ(planned, parameters(kCifar, {.name = "mobilenet_v2"}));
}

TEST(Networks, TheStemFollowsTheImageSizeByDefault) {
  GraphInput small = kCifar;
  small.height = small.width = 64;
  GraphInput large = kCifar;
  large.height = large.width = 65;
  const auto conv1 = [](const GraphInput& input, Stem stem) {
    const Graph graph = built(input, {.name = "resnet18", .stem = stem});
    return std::get<ConvolutionOptions>(layer_of(graph, "conv1").operation);
  };
  EXPECT_EQ(conv1(small, Stem::automatic).stride, 1);
  EXPECT_EQ(conv1(small, Stem::imagenet).stride, 2);
  EXPECT_EQ(conv1(large, Stem::automatic).stride, 2);
  EXPECT_EQ(conv1(large, Stem::automatic).kernel, 7);
  EXPECT_EQ(conv1(large, Stem::cifar).stride, 1);

  const auto map = [](Stem stem) {  // size of a 224x224 image before the average pooling
    const Graph graph = built(kImageNet, {.name = "mobilenet_v2", .stem = stem});
    return graph.shape(layer_of(graph, "features.18.0").output)[2];
  };
  EXPECT_EQ(map(Stem::automatic), 7);
  EXPECT_EQ(map(Stem::cifar), 28);
}

TEST(Networks, ResNet50HasItsStrideInThe3x3Convolution) {
  const Graph graph = built(kImageNet, {.name = "resnet50"});
  const auto options = [&](const std::string& name) {
    return std::get<ConvolutionOptions>(layer_of(graph, name).operation);
  };
  EXPECT_EQ(options("layer2.0.conv1").stride, 1);
  EXPECT_EQ(options("layer2.0.conv2").stride, 2);
  EXPECT_EQ(graph.shape(layer_of(graph, "layer4.2.conv3").output), (Shape{1, 2048, 7, 7}));
}

TEST(Networks, VggHasThePapersClassifierForLargeImagesOnly) {
  const Graph paper = built(kImageNet, {.name = "vgg11_bn"});
  const auto dropout = [&](const std::string& name) {
    return std::get<DropoutOptions>(layer_of(paper, name).operation).probability;
  };
  EXPECT_EQ(dropout("classifier.2"), 0.5);
  EXPECT_EQ(dropout("classifier.5"), 0.5);
  const Graph small = built(kCifar, {.name = "vgg11_bn"});
  EXPECT_EQ(layer_of(small, "classifier").output.id, small.logits().id);
  GraphInput tiny = kCifar;
  tiny.height = 28;
  expect_parts(message_of<ConfigError>([&] { built(tiny, {.name = "vgg11_bn"}); }),
               {"vgg11_bn", "28x32", "data.resize"});
}

TEST(Networks, DropoutOfTheNetworkIsTheDefault) {
  const auto dropouts = [](const std::string& name, double dropout) {
    std::vector<double> found;
    const Graph graph = built(kCifar, {.name = name, .dropout = dropout});
    for (const Layer& layer : graph.layers()) {
      if (const auto* o = std::get_if<DropoutOptions>(&layer.operation)) found.push_back(o->probability);
    }
    return found;
  };
  EXPECT_EQ(dropouts("mobilenet_v2", NetworkChoice::kOwnDropout), (std::vector{0.2}));
  EXPECT_EQ(dropouts("mobilenet_v2", 0.4), (std::vector{0.4}));
  EXPECT_TRUE(dropouts("mobilenet_v2", 0).empty());
  EXPECT_TRUE(dropouts("mlp", NetworkChoice::kOwnDropout).empty());
  EXPECT_EQ(dropouts("mlp", 0.1), (std::vector{0.1, 0.1}));
  EXPECT_EQ(dropouts("cnn", 0.1), (std::vector{0.1}));
  for (const char* name : {"resnet20", "resnet18", "resnet50", "vgg11_bn"}) {
    EXPECT_TRUE(dropouts(name, NetworkChoice::kOwnDropout).empty()) << name;
    EXPECT_EQ(dropouts(name, 0.3), (std::vector{0.3})) << name;
  }
  GraphInput masks = kCifar;
  masks.masks = true;
  for (const double dropout : {0.1, -0.5}) {
    expect_parts(message_of<ConfigError>([&] { built(masks, {.name = "unet", .dropout = dropout}); }),
                 {"model.dropout", "unet"});
  }
  const std::vector<LayerSpec> layers;
  expect_parts(
      message_of<ConfigError>([&] { built(kCifar, {.name = "layers", .dropout = 0.1, .layers = layers}); }),
      {"model.dropout", "dropout"});
}

NetworkChoice with_options(const std::string& name, const std::map<std::string, double>& given) {
  NetworkChoice choice{.name = name};
  const NetworkEntry& entry = find_network(network_table(), name);
  for (const NumberOption& option : entry.options)
    if (const auto found = given.find(std::string(option.name)); found != given.end())
      choice.own.at(name, option) = found->second;
  return choice;
}

TEST(Networks, WidthDepthAndKernelOfSmallNetworksAreOptions) {
  const Graph mlp = built(kCifar, with_options("mlp", {{"width", 100}, {"depth", 3}}));
  const auto features = [&](const std::string& name) { return mlp.shape(layer_of(mlp, name).output)[1]; };
  EXPECT_EQ(features("fc1"), 100);
  EXPECT_EQ(features("fc2"), 50);
  EXPECT_EQ(features("fc3"), 25);
  EXPECT_EQ(layer_of(mlp, "fc4").output.id, mlp.logits().id);

  const Graph cnn =
      built(kCifar, with_options("cnn", {{"width", 8}, {"depth", 3}, {"kernel", 5}, {"hidden", 40}}));
  EXPECT_EQ(cnn.shape(layer_of(cnn, "conv1").output), (Shape{kCifar.batch, 8, 32, 32}));
  EXPECT_EQ(cnn.shape(layer_of(cnn, "conv3").output), (Shape{kCifar.batch, 32, 8, 8}));
  EXPECT_EQ(std::get<ConvolutionOptions>(layer_of(cnn, "conv2").operation).kernel, 5);
  EXPECT_EQ(std::get<LinearOptions>(layer_of(cnn, "fc1").operation).features, 40);

  expect_parts(message_of<ConfigError>([] {
                 built(kCifar, with_options("cnn", {{"kernel", 4}}));
               }),
               {"model.cnn.kernel = 4", "odd"});
  expect_parts(message_of<ConfigError>([] {
                 built(kCifar, with_options("cnn", {{"depth", 6}}));
               }),
               {"model.cnn.depth = 6", "32 pixels"});
}

std::vector<std::string> zero_scales(const Graph& graph) {
  std::vector<std::string> names;
  for (const Layer& layer : graph.layers()) {
    const auto* o = std::get_if<BatchNormOptions>(&layer.operation);
    if (o != nullptr && o->initial_scale == 0) names.push_back(layer.name);
  }
  return names;
}

TEST(Networks, ZeroInitResidualStartsTheLastGammaOfEachBlockAtZero) {
  EXPECT_TRUE(zero_scales(built(kCifar, {.name = "resnet50"})).empty());
  const auto names = zero_scales(built(kCifar, {.name = "resnet50", .zero_init_residual = true}));
  EXPECT_EQ(names.size(), 16u);
  for (const std::string& name : names) EXPECT_TRUE(name.ends_with(".bn3")) << name;

  const GraphInput input{.batch = 2, .height = 8, .width = 8, .channels = 3, .classes = 5};
  NetworkFixture fixture(input, [](Graph& graph) { cifar_resnet(graph, 1, {.zero_init_residual = true}); });
  const StateSnapshot snapshot(fixture.network());
  int last_gammas = 0;
  for (const auto& entry : snapshot.entries()) {
    if (!entry.name.ends_with("bn1.weight") && !entry.name.ends_with("bn2.weight")) continue;
    const bool last = entry.name.ends_with("bn2.weight");
    last_gammas += last ? 1 : 0;
    EXPECT_EQ(entry.values, std::vector<float>(entry.values.size(), last ? 0.0f : 1.0f)) << entry.name;
  }
  EXPECT_EQ(last_gammas, 3);
}

// A few names and shapes of each kind, as in torchvision's state_dict().
TEST(Networks, NamesEqualTorchvision) {
  struct Expected {
    std::string network;
    std::vector<std::string> tensors;
  };
  const std::vector<Expected> all = {
      {"resnet50",
       {"conv1.weight[64, 3, 3, 3]", "bn1.running_var[64]", "layer1.0.downsample.0.weight[256, 64, 1, 1]",
        "layer1.0.downsample.1.bias[256]", "layer2.3.conv3.weight[512, 128, 1, 1]",
        "layer4.2.bn3.weight[2048]", "fc.weight[10, 2048]", "fc.bias[10]"}},
      {"vgg11_bn",
       {"features.0.weight[64, 3, 3, 3]", "features.0.bias[64]", "features.1.running_mean[64]",
        "features.4.weight[128, 64, 3, 3]", "features.25.weight[512, 512, 3, 3]", "features.26.weight[512]",
        "classifier.weight[10, 512]"}},
      {"mobilenet_v2",
       {"features.0.0.weight[32, 3, 3, 3]", "features.0.1.weight[32]",
        "features.1.conv.0.0.weight[32, 1, 3, 3]", "features.1.conv.0.1.bias[32]",
        "features.1.conv.1.weight[16, 32, 1, 1]", "features.1.conv.2.weight[16]",
        "features.2.conv.0.0.weight[96, 16, 1, 1]", "features.2.conv.1.0.weight[96, 1, 3, 3]",
        "features.2.conv.2.weight[24, 96, 1, 1]", "features.2.conv.3.running_var[24]",
        "features.17.conv.2.weight[320, 960, 1, 1]", "features.18.0.weight[1280, 320, 1, 1]",
        "features.18.1.weight[1280]", "classifier.1.weight[10, 1280]", "classifier.1.bias[10]"}}};
  for (const auto& [network, tensors] : all) {
    if (kOneOf > 1 && network != "mobilenet_v2") continue;  // resnet50 and vgg11_bn have many parameters
    NetworkFixture fixture(kCifar, [&](Graph& graph) { build_network(graph, {.name = network}); });
    std::vector<std::string> names;
    const StateSnapshot snapshot(fixture.network());
    for (const auto& entry : snapshot.entries()) names.push_back(entry.name + to_string(entry.shape));
    for (const std::string& name : tensors)
      EXPECT_EQ(std::ranges::count(names, name), 1) << network << " lacks " << name;
  }
}

// Inverted residuals and in-place activations, which the small networks of network_test lack.
TEST(Networks, MobileNetSharesMemoryWithTheSameResults) {
  const GraphInput input{.batch = 4, .height = 32, .width = 32, .channels = 3, .classes = 5};
  const auto build = [](Graph& graph) { mobilenet_v2(graph); };
  NetworkFixture shared(input, build);
  NetworkFixture unshared(input, build, 1, Recompute::nothing, Precision::fp32, MemorySharing::none);
  EXPECT_EQ(shared.forward_backward(), unshared.forward_backward());
  EXPECT_TRUE(std::ranges::equal(shared.gradients(), unshared.gradients()));
}

}  // namespace
}  // namespace lockstep
