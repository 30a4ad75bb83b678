// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kExpansion = 4;  // ratio of a bottleneck's output channels to its inner channels

struct ResNetBlock {
  std::int64_t channels = 0;  // inside the block
  std::int64_t stride = 1;
  bool zero_init_residual = false;
};

Value normalized(Graph& graph, Value x, const std::string& name, SourcePlace place = SourcePlace::current()) {
  return graph.batch_norm(x, {.activation = Activation::relu}, name, place);
}

// The end of every block: ReLU(batch norm(y) + shortcut).
Value close_block(Graph& graph, Value y, Value shortcut, const ResNetBlock& options,
                  const std::string& batch_norm) {
  return graph.batch_norm(
      y, shortcut,
      {.activation = Activation::relu, .initial_scale = options.zero_init_residual ? 0.0f : 1.0f},
      batch_norm);
}

// The block's input, projected to the shape of its output.
Value shortcut_of(Graph& graph, Value x, std::int64_t channels, std::int64_t stride,
                  const std::string& block) {
  if (stride == 1 && graph.shape(x)[1] == channels) return x;
  x = padded_convolution(graph, x, {.channels = channels, .stride = stride}, block + ".downsample.0");
  return graph.batch_norm(x, {}, block + ".downsample.1");
}

// Two 3x3 convolutions (He et al., "Deep residual learning", 2015, figure 5 left).
Value basic_block(Graph& graph, Value x, const ResNetBlock& options, const std::string& name) {
  const BlockScope scope(graph);
  const std::int64_t channels = options.channels;
  Value y = padded_convolution(graph, x, {.channels = channels, .kernel = 3, .stride = options.stride},
                               name + ".conv1");
  y = normalized(graph, y, name + ".bn1");
  y = padded_convolution(graph, y, {.channels = channels, .kernel = 3}, name + ".conv2");
  const Value shortcut = shortcut_of(graph, x, channels, options.stride, name);
  return close_block(graph, y, shortcut, options, name + ".bn2");
}

// 1x1, 3x3, 1x1 (figure 5 right).
Value bottleneck(Graph& graph, Value x, const ResNetBlock& options, const std::string& name) {
  const BlockScope scope(graph);
  const std::int64_t channels = options.channels;
  Value y = padded_convolution(graph, x, {.channels = channels}, name + ".conv1");
  y = normalized(graph, y, name + ".bn1");
  y = padded_convolution(graph, y, {.channels = channels, .kernel = 3, .stride = options.stride},
                         name + ".conv2");
  y = normalized(graph, y, name + ".bn2");
  y = padded_convolution(graph, y, {.channels = channels * kExpansion}, name + ".conv3");
  const Value shortcut = shortcut_of(graph, x, channels * kExpansion, options.stride, name);
  return close_block(graph, y, shortcut, options, name + ".bn3");
}

using Block = Value (*)(Graph&, Value, const ResNetBlock&, const std::string&);

struct Stages {
  Block block = basic_block;
  std::vector<int> blocks;    // per stage
  std::int64_t channels = 0;  // of the first stage; each later stage has twice as many at half the size
};

Value stem(Graph& graph, std::int64_t channels, Stem kind) {
  const bool small = kind == Stem::cifar;
  const ConvolutionOptions first{.channels = channels, .kernel = small ? 3 : 7, .stride = small ? 1 : 2};
  const Value x = normalized(graph, padded_convolution(graph, graph.input(), first, "conv1"), "bn1");
  return small ? x : graph.pooling(x, {.kernel = 3, .stride = 2, .padding = 1});
}

void resnet(Graph& graph, const Stages& stages, const ResNetOptions& options) {
  Value x = stem(graph, stages.channels, resolved(options.stem, graph));
  for (std::size_t stage = 0; stage < stages.blocks.size(); ++stage) {
    for (int block = 0; block < stages.blocks[stage]; ++block) {
      x = stages.block(graph, x,
                       {.channels = stages.channels << stage,
                        .stride = stage > 0 && block == 0 ? 2 : 1,
                        .zero_init_residual = options.zero_init_residual},
                       "layer" + std::to_string(stage + 1) + "." + std::to_string(block));
    }
  }
  x = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
  x = graph.dropout(x, options.dropout, "dropout");
  graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc"));
}

}  // namespace

void resnet18(Graph& graph, const ResNetOptions& options) {
  resnet(graph, {.block = basic_block, .blocks = {2, 2, 2, 2}, .channels = 64}, options);
}

void resnet34(Graph& graph, const ResNetOptions& options) {
  resnet(graph, {.block = basic_block, .blocks = {3, 4, 6, 3}, .channels = 64}, options);
}

void resnet50(Graph& graph, const ResNetOptions& options) {
  resnet(graph, {.block = bottleneck, .blocks = {3, 4, 6, 3}, .channels = 64}, options);
}

void cifar_resnet(Graph& graph, int blocks, const ResNetOptions& options) {
  resnet(graph, {.block = basic_block, .blocks = {blocks, blocks, blocks}, .channels = 16},
         {.stem = Stem::cifar, .zero_init_residual = options.zero_init_residual, .dropout = options.dropout});
}

}  // namespace lockstep
