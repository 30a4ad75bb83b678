// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

ResNetOptions resnet_options(const NetworkChoice& choice) {
  return {.stem = choice.stem, .zero_init_residual = choice.zero_init_residual};
}

}  // namespace

const std::vector<NetworkEntry>& network_table() {
  using Choice = const NetworkChoice&;
  static const std::vector<NetworkEntry> table = {
      {"mlp", [](Graph& graph, Choice choice) { mlp(graph, dropout_of(choice, 0)); }, true},
      {"cnn",
       [](Graph& graph, Choice choice) {
         cnn(graph, {.batch_norm = choice.batch_norm, .dropout = dropout_of(choice, 0)});
       },
       true},
      {"resnet20", [](Graph& graph, Choice choice) { cifar_resnet(graph, 3, resnet_options(choice)); }},
      {"resnet18", [](Graph& graph, Choice choice) { resnet18(graph, resnet_options(choice)); }},
      {"resnet34", [](Graph& graph, Choice choice) { resnet34(graph, resnet_options(choice)); }},
      {"resnet50", [](Graph& graph, Choice choice) { resnet50(graph, resnet_options(choice)); }},
      {"vgg11_bn", [](Graph& graph, Choice choice) { vgg11_bn(graph, dropout_of(choice, 0.5)); }},
      {"mobilenet_v2",
       [](Graph& graph, Choice choice) {
         mobilenet_v2(graph, {.stem = choice.stem, .dropout = dropout_of(choice, 0.2)});
       }},
  };
  return table;
}

double dropout_of(const NetworkChoice& choice, double own) {
  return choice.dropout == NetworkChoice::kOwnDropout ? own : choice.dropout;
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const NetworkEntry& entry : network_table()) names.push_back(entry.name);
  return names;
}

const NetworkEntry& find_network(const std::vector<NetworkEntry>& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &NetworkEntry::name);
  if (found != table.end()) return *found;
  std::vector<std::string> names;
  for (const NetworkEntry& entry : table) names.push_back(entry.name);
  throw ConfigError(fmt::format("unknown network \"{}\": allowed are {}", name, fmt::join(names, ", ")));
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

void mlp(Graph& graph, double dropout) {
  Value x = graph.input();
  x = graph.relu(graph.linear(x, {.features = 512}, "fc1"));
  x = graph.dropout(x, dropout, "dropout1");
  x = graph.relu(graph.linear(x, {.features = 256}, "fc2"));
  x = graph.dropout(x, dropout, "dropout2");
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc3"));
}

void cnn(Graph& graph, const CnnOptions& options) {
  Value x = graph.input();
  std::int64_t channels = 32;
  for (const char* number : {"1", "2"}) {
    x = graph.convolution(x, {.channels = channels, .kernel = 3, .padding = 1, .bias = !options.batch_norm},
                          std::string("conv") + number);
    x = options.batch_norm ? graph.batch_norm(x, {.activation = Activation::relu}, std::string("bn") + number)
                           : graph.relu(x);
    x = graph.pooling(x, {.kernel = 2, .stride = 2});
    channels *= 2;
  }
  x = graph.relu(graph.linear(x, {.features = 128}, "fc1"));
  x = graph.dropout(x, options.dropout, "dropout");
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc2"));
}

}  // namespace lockstep
