// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/error.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

// Two 3x3 convolutions, each with batch norm and ReLU.
Value double_convolution(Graph& graph, Value x, std::int64_t channels, const std::string& name) {
  for (const int i : {1, 2}) {
    x = padded_convolution(graph, x, {.channels = channels, .kernel = 3}, fmt::format("{}.conv{}", name, i));
    x = graph.batch_norm(x, {.activation = Activation::relu}, fmt::format("{}.bn{}", name, i));
  }
  return x;
}

}  // namespace

void unet(Graph& graph, const UnetOptions& options) {
  const GraphInput& input = graph.input_shape();
  const std::int64_t multiple = std::int64_t{1} << options.depth;
  if (input.height % multiple != 0 || input.width % multiple != 0)
    throw ConfigError(
        fmt::format("model.unet.depth = {}: images are halved {} times, so their height and width must be "
                    "multiples of {}, not {} and {}; set data.resize or a smaller depth",
                    options.depth, options.depth, multiple, input.height, input.width));
  std::vector<Value> skips;
  Value x = graph.input();
  std::int64_t channels = options.width;
  for (std::int64_t level = 1; level <= options.depth; ++level, channels *= 2) {
    x = double_convolution(graph, x, channels, fmt::format("down{}", level));
    skips.push_back(x);
    x = graph.pooling(x, {.kernel = 2, .stride = 2});
  }
  x = double_convolution(graph, x, channels, "bottom");
  for (std::int64_t level = options.depth; level >= 1; --level) {
    channels /= 2;
    x = graph.concatenate(skips[static_cast<std::size_t>(level) - 1], graph.upsample(x, 2));
    x = double_convolution(graph, x, channels, fmt::format("up{}", level));
  }
  graph.classify(graph.convolution(x, {.channels = input.classes}, "head"));
}

}  // namespace lockstep
