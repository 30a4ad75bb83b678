// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

#include "core/error.h"

namespace lockstep {

std::vector<std::string> network_names() { return {"mlp", "cnn", "resnet20"}; }

void build_network(Graph& graph, const NetworkChoice& choice) {
  if (choice.name == "mlp") return mlp(graph);
  if (choice.name == "cnn") return cnn(graph, choice.batch_norm);
  if (choice.name == "resnet20") return cifar_resnet(graph, 3);
  throw ConfigError(
      fmt::format("unknown network \"{}\": allowed are {}", choice.name, fmt::join(network_names(), ", ")));
}

void mlp(Graph& graph) {
  Value x = graph.input();
  x = graph.relu(graph.linear(x, {.features = 512}, "fc1"));
  x = graph.relu(graph.linear(x, {.features = 256}, "fc2"));
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc3"));
}

void cnn(Graph& graph, bool batch_norm) {
  Value x = graph.input();
  std::int64_t channels = 32;
  for (const char* number : {"1", "2"}) {
    x = graph.convolution(x, {.channels = channels, .kernel = 3, .padding = 1, .bias = !batch_norm},
                          std::string("conv") + number);
    x = batch_norm ? graph.batch_norm(x, {.activation = Activation::relu}, std::string("bn") + number)
                   : graph.relu(x);
    x = graph.pooling(x, {.kernel = 2, .stride = 2});
    channels *= 2;
  }
  x = graph.relu(graph.linear(x, {.features = 128}, "fc1"));
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc2"));
}

}  // namespace lockstep
