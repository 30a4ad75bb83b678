// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPool = 0;  // used in place of a number of channels
constexpr std::int64_t kConfigurationA[] = {64,  kPool, 128,   kPool, 256, 256,  kPool,
                                            512, 512,   kPool, 512,   512, kPool};
constexpr std::int64_t kLeastImage = 32;     // halved five times
constexpr std::int64_t kLargestImage = 255;  // leaves a 7x7 map
constexpr std::int64_t kPaperMap = 7;

// Numbered as in torchvision: convolution, batch norm, ReLU and pooling each count.
Value features(Graph& graph) {
  Value x = graph.input();
  int index = 0;
  const auto name = [&index] { return "features." + std::to_string(index++); };
  for (const std::int64_t channels : kConfigurationA) {
    if (channels == kPool) {
      x = graph.pooling(x, {.kernel = 2, .stride = 2});
    } else {
      x = graph.convolution(
          x, {.channels = channels, .kernel = 3, .padding = 1, .initialization = Initialization::he_normal},
          name());
      x = graph.batch_norm(x, {.activation = Activation::relu}, name());
    }
    ++index;
  }
  return x;
}

}  // namespace

void vgg11_bn(Graph& graph, double dropout, double dropout_of_small) {
  const GraphInput& image = graph.input_shape();
  const auto fits = [](std::int64_t side) { return side >= kLeastImage && side <= kLargestImage; };
  if (!fits(image.height) || !fits(image.width)) {
    throw ConfigError(
        fmt::format("vgg11_bn: images are {}x{}, allowed are sides from {} to {}; set data.resize",
                    image.height, image.width, kLeastImage, kLargestImage));
  }
  const auto linear = [&graph](Value x, std::int64_t outputs, const std::string& name) {
    return graph.linear(x, {.features = outputs, .initialization = Initialization::normal_001}, name);
  };
  Value x = features(graph);
  if (graph.shape(x)[2] != kPaperMap || graph.shape(x)[3] != kPaperMap) {
    x = graph.pooling(x, {.kind = PoolingKind::average, .global = true});
    x = graph.dropout(x, dropout_of_small, "dropout");
    graph.classify(linear(x, image.classes, "classifier"));
    return;
  }
  x = graph.relu(linear(x, 4096, "classifier.0"));
  x = graph.dropout(x, dropout, "classifier.2");
  x = graph.relu(linear(x, 4096, "classifier.3"));
  x = graph.dropout(x, dropout, "classifier.5");
  graph.classify(linear(x, image.classes, "classifier.6"));
}

}  // namespace lockstep
