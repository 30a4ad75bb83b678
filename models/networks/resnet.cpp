// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr auto kInitialization = Initialization::he_normal;

struct BlockOptions {
  std::int64_t channels = 0;
  std::int64_t stride = 1;
};

// Two 3x3 convolutions and a shortcut (He et al., "Deep residual learning", 2015, figure 2).
Value basic_block(Graph& graph, Value x, const BlockOptions& options, const std::string& name) {
  const std::int64_t channels = options.channels;
  Value y = graph.convolution(x,
                              {.channels = channels,
                               .kernel = 3,
                               .stride = options.stride,
                               .padding = 1,
                               .bias = false,
                               .initialization = kInitialization},
                              name + ".conv1");
  y = graph.batch_norm(y, {.activation = Activation::relu}, name + ".bn1");
  y = graph.convolution(
      y, {.channels = channels, .kernel = 3, .padding = 1, .bias = false, .initialization = kInitialization},
      name + ".conv2");
  y = graph.batch_norm(y, {}, name + ".bn2");
  Value shortcut = x;
  if (options.stride != 1 || graph.shape(x)[1] != channels) {
    shortcut = graph.convolution(
        x, {.channels = channels, .stride = options.stride, .bias = false, .initialization = kInitialization},
        name + ".downsample.0");
    shortcut = graph.batch_norm(shortcut, {}, name + ".downsample.1");
  }
  return graph.relu(graph.add(y, shortcut));
}

}  // namespace

void cifar_resnet(Graph& graph, int blocks) {
  Value x = graph.convolution(
      graph.input(),
      {.channels = 16, .kernel = 3, .padding = 1, .bias = false, .initialization = kInitialization}, "conv1");
  x = graph.batch_norm(x, {.activation = Activation::relu}, "bn1");
  for (int stage = 0; stage < 3; ++stage) {
    for (int block = 0; block < blocks; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      x = basic_block(graph, x, {.channels = 16 << stage, .stride = stage > 0 && block == 0 ? 2 : 1}, name);
    }
  }
  x = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc"));
}

}  // namespace lockstep
