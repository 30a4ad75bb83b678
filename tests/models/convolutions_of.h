// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>
#include <vector>

#include "kernels/affine.h"
#include "models/graph.h"

namespace lockstep {

// The convolutions of a graph, in order. input_gradient is false for those that read the images.
inline std::vector<ConvolutionShape> convolutions_of(const Graph& graph) {
  std::vector<ConvolutionShape> shapes;
  for (const Layer& layer : graph.layers()) {
    const auto* options = std::get_if<ConvolutionOptions>(&layer.operation);
    if (options == nullptr) continue;
    const Shape& in = graph.shape(layer.inputs[0]);
    shapes.push_back({.batch = in[0],
                      .in_channels = in[1],
                      .in_height = in[2],
                      .in_width = in[3],
                      .out_channels = options->channels,
                      .kernel = options->kernel,
                      .stride = options->stride,
                      .padding = options->padding,
                      .dilation = options->dilation,
                      .groups = options->groups,
                      .bias = options->bias,
                      .input_gradient = layer.inputs[0].id != graph.input().id});
  }
  return shapes;
}

}  // namespace lockstep
