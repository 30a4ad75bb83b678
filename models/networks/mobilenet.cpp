// SPDX-License-Identifier: Apache-2.0
#include "models/networks/networks.h"

namespace lockstep {
namespace {

// A row of table 2 of the paper.
struct Stage {
  std::int64_t expansion;
  std::int64_t channels;
  int blocks;
  std::int64_t stride;  // of the first block
};
constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                             {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
constexpr std::int64_t kStemChannels = 32;
constexpr std::int64_t kLastChannels = 1280;

// Convolution (name.0), batch norm (name.1), ReLU6.
Value activated(Graph& graph, Value x, const ConvolutionOptions& options, const std::string& name) {
  x = padded_convolution(graph, x, options, name + ".0");
  return graph.batch_norm(x, {.activation = Activation::relu6}, name + ".1");
}

struct InvertedResidual {
  std::int64_t expansion = 1;
  std::int64_t channels = 0;
  std::int64_t stride = 1;
};

// 1x1 expansion, 3x3 depthwise convolution, 1x1 projection without an activation (figure 3b).
Value inverted_residual(Graph& graph, Value x, const InvertedResidual& options, const std::string& block) {
  const BlockScope scope(graph);
  const std::int64_t inputs = graph.shape(x)[1];
  const std::int64_t inner = inputs * options.expansion;
  int index = 0;
  const auto name = [&] { return block + ".conv." + std::to_string(index++); };
  Value y = x;
  if (options.expansion != 1) y = activated(graph, y, {.channels = inner}, name());
  y = activated(graph, y, {.channels = inner, .kernel = 3, .stride = options.stride, .groups = inner},
                name());
  y = padded_convolution(graph, y, {.channels = options.channels}, name());
  const bool shortcut = options.stride == 1 && inputs == options.channels;
  return shortcut ? graph.batch_norm(y, x, {}, name()) : graph.batch_norm(y, {}, name());
}

}  // namespace

void mobilenet_v2(Graph& graph, const MobileNetOptions& options) {
  const bool small = resolved(options.stem, graph) == Stem::cifar;
  int index = 0;
  const auto name = [&index] { return "features." + std::to_string(index++); };
  Value x = activated(graph, graph.input(), {.channels = kStemChannels, .kernel = 3, .stride = small ? 1 : 2},
                      name());
  for (const Stage& stage : kStages) {
    for (int block = 0; block < stage.blocks; ++block) {
      const bool keeps_size = block > 0 || (small && &stage == &kStages[1]);
      x = inverted_residual(
          graph, x,
          {.expansion = stage.expansion, .channels = stage.channels, .stride = keeps_size ? 1 : stage.stride},
          name());
    }
  }
  x = activated(graph, x, {.channels = kLastChannels}, name());
  x = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
  x = graph.dropout(x, options.dropout, "classifier.0");
  graph.classify(
      graph.linear(x, {.features = graph.input_shape().classes, .initialization = Initialization::normal_001},
                   "classifier.1"));
}

}  // namespace lockstep
