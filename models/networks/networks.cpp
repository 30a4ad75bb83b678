// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/named_entries.h"

namespace lockstep {
namespace {

constexpr NumberOption kMlpOptions[] = {
    {.name = "width",
     .initial = 512,
     .least = 1,
     .most = 65536,
     .meaning = "features of the first hidden layer; each further layer has half as many",
     .whole = true},
    {.name = "depth",
     .initial = 2,
     .least = 1,
     .most = 64,
     .meaning = "number of hidden layers",
     .whole = true}};

constexpr NumberOption kCnnOptions[] = {
    {.name = "width",
     .initial = 32,
     .least = 1,
     .most = 4096,
     .meaning = "channels of the first convolution; each further convolution has twice as many",
     .whole = true},
    {.name = "depth",
     .initial = 2,
     .least = 1,
     .most = 10,
     .meaning = "number of convolutions; each halves the image",
     .whole = true},
    {.name = "kernel",
     .initial = 3,
     .least = 1,
     .most = 31,
     .meaning = "kernel size of the convolutions in pixels; odd",
     .whole = true},
    {.name = "hidden",
     .initial = 128,
     .least = 1,
     .most = 65536,
     .meaning = "features of the hidden layer before the classifier",
     .whole = true}};

constexpr NumberOption kUnetOptions[] = {
    {.name = "width",
     .initial = 16,
     .least = 1,
     .most = 1024,
     .meaning = "channels of the first level; each further level has twice as many",
     .whole = true},
    {.name = "depth",
     .initial = 3,
     .least = 1,
     .most = 8,
     .meaning = "number of levels, each of which halves the image",
     .whole = true}};

// The dropout of choice, or the network's `own` value by default.
double dropout_of(const NetworkChoice& choice, double own) {
  return choice.dropout == NetworkChoice::kOwnDropout ? own : choice.dropout;
}

std::int64_t own_number(const NetworkChoice& choice, std::string_view network, const NumberOption& option) {
  return static_cast<std::int64_t>(choice.own.of(network, option));
}

MlpOptions mlp_options(const NetworkChoice& choice) {
  return {.dropout = dropout_of(choice, 0),
          .width = own_number(choice, "mlp", kMlpOptions[0]),
          .depth = own_number(choice, "mlp", kMlpOptions[1])};
}

CnnOptions cnn_options(const NetworkChoice& choice) {
  return {.batch_norm = choice.batch_norm,
          .dropout = dropout_of(choice, 0),
          .width = own_number(choice, "cnn", kCnnOptions[0]),
          .depth = own_number(choice, "cnn", kCnnOptions[1]),
          .kernel = own_number(choice, "cnn", kCnnOptions[2]),
          .hidden = own_number(choice, "cnn", kCnnOptions[3])};
}

ResNetOptions resnet_options(const NetworkChoice& choice) {
  return {
      .stem = choice.stem, .zero_init_residual = choice.zero_init_residual, .dropout = dropout_of(choice, 0)};
}

// instead: what the user can do.
void refuse_dropout(const NetworkChoice& choice, const char* instead) {
  if (dropout_of(choice, 0) != 0)
    throw ConfigError(
        fmt::format("model.dropout = {}: {} has no such layer; {}", choice.dropout, choice.name, instead));
}

}  // namespace

const std::vector<NetworkEntry>& network_table() {
  using Choice = const NetworkChoice&;
  static const std::vector<NetworkEntry> table = {
      {"mlp", [](Graph& graph, Choice choice) { mlp(graph, mlp_options(choice)); }, true, kMlpOptions},
      {"cnn", [](Graph& graph, Choice choice) { cnn(graph, cnn_options(choice)); }, true, kCnnOptions},
      {"resnet20", [](Graph& graph, Choice choice) { cifar_resnet(graph, 3, resnet_options(choice)); }},
      {"resnet18", [](Graph& graph, Choice choice) { resnet18(graph, resnet_options(choice)); }},
      {"resnet34", [](Graph& graph, Choice choice) { resnet34(graph, resnet_options(choice)); }},
      {"resnet50", [](Graph& graph, Choice choice) { resnet50(graph, resnet_options(choice)); }},
      {"vgg11_bn",
       [](Graph& graph, Choice choice) { vgg11_bn(graph, dropout_of(choice, 0.5), dropout_of(choice, 0)); }},
      {"mobilenet_v2",
       [](Graph& graph, Choice choice) {
         mobilenet_v2(graph, {.stem = choice.stem, .dropout = dropout_of(choice, 0.2)});
       }},
      {"unet",
       [](Graph& graph, Choice choice) {
         refuse_dropout(choice, "describe the network layer by layer (model.name = \"layers\")");
         unet(graph, {.width = own_number(choice, "unet", kUnetOptions[0]),
                      .depth = own_number(choice, "unet", kUnetOptions[1])});
       },
       false, kUnetOptions},
      {kLayersNetwork,
       [](Graph& graph, Choice choice) {
         refuse_dropout(choice, "add a layer of kind = \"dropout\"");
         build_layers(graph, choice.layers);
       }},
  };
  return table;
}

const NetworkEntry& find_network(const std::vector<NetworkEntry>& table, const std::string& name) {
  return entry_named(name, table, "network");
}

void build_network(Graph& graph, const NetworkChoice& choice) {
  find_network(network_table(), choice.name).build(graph, choice);
}

Value padded_convolution(Graph& graph, Value x, ConvolutionOptions options, const std::string& name,
                         SourcePlace place) {
  options.padding = options.kernel / 2;
  options.bias = false;
  options.initialization = Initialization::he_normal;
  return graph.convolution(x, options, name, place);
}

Stem resolved(Stem stem, const Graph& graph) {
  if (stem != Stem::automatic) return stem;
  return graph.input_shape().height <= 64 ? Stem::cifar : Stem::imagenet;
}

void mlp(Graph& graph, const MlpOptions& options) {
  Value x = graph.input();
  std::int64_t features = options.width;
  for (std::int64_t layer = 1; layer <= options.depth; ++layer) {
    x = graph.relu(graph.linear(x, {.features = features}, fmt::format("fc{}", layer)));
    x = graph.dropout(x, options.dropout, fmt::format("dropout{}", layer));
    features = std::max<std::int64_t>(features / 2, 1);
  }
  graph.classify(
      graph.linear(x, {.features = graph.input_shape().classes}, fmt::format("fc{}", options.depth + 1)));
}

void cnn(Graph& graph, const CnnOptions& options) {
  const std::int64_t side = std::min(graph.input_shape().height, graph.input_shape().width);
  if (options.kernel % 2 == 0)
    throw ConfigError(fmt::format("model.cnn.kernel = {}: allowed are odd numbers", options.kernel));
  if (side >> options.depth == 0)
    throw ConfigError(fmt::format(
        "model.cnn.depth = {0}: each convolution halves the image, but {1} pixels cannot be halved {0} times",
        options.depth, side));
  Value x = graph.input();
  std::int64_t channels = options.width;
  for (std::int64_t layer = 1; layer <= options.depth; ++layer) {
    x = graph.convolution(x,
                          {.channels = channels,
                           .kernel = options.kernel,
                           .padding = options.kernel / 2,
                           .bias = !options.batch_norm},
                          fmt::format("conv{}", layer));
    x = options.batch_norm ? graph.batch_norm(x, {.activation = Activation::relu}, fmt::format("bn{}", layer))
                           : graph.relu(x);
    x = graph.pooling(x, {.kernel = 2, .stride = 2});
    channels *= 2;
  }
  x = graph.relu(graph.linear(x, {.features = options.hidden}, "fc1"));
  x = graph.dropout(x, options.dropout, "dropout");
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc2"));
}

}  // namespace lockstep
