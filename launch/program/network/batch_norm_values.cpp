// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/batch_norm_values.h"

#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {

void require_batch_norm_values(const Graph& graph, const BatchNormSamples& samples) {
  if (samples.synchronized_ranks > 1) return;
  for (const Layer& layer : graph.layers()) {
    if (!std::holds_alternative<BatchNormOptions>(layer.operation) || layer.frozen) continue;
    const Shape& shape = graph.shape(layer.output);
    const std::int64_t pixels = shape.elements() / (shape[0] * shape[1]);
    if (pixels > 1) continue;
    if (shape[0] == 1) {
      throw ConfigError(
          fmt::format("{}: batch norm over {} has one value per channel, whose variance is 0, so the layer "
                      "cannot be trained; raise train.batch, set model.sync_batch_norm = true on several "
                      "ranks, use larger images (data.resize), or freeze the layer (model.freeze)",
                      layer.name, to_string(shape)));
    }
    // Some micro-batch of the tail then has one sample, which its other places repeat.
    if (samples.tail > 0 && samples.tail / samples.micro_batches <= 1) {
      throw ConfigError(
          fmt::format("data.tail = \"exact\": the last batch of an epoch has {} for {} micro-batch{}, so "
                      "batch norm in {}, of {}, would have one value per channel; set data.tail = \"drop\", "
                      "\"carry\" or \"repeat\", another train.batch, model.sync_batch_norm = true on several "
                      "ranks, or larger images (data.resize)",
                      counted(samples.tail, "sample"), samples.micro_batches,
                      samples.micro_batches == 1 ? "" : "es", layer.name, to_string(shape)));
    }
  }
}

}  // namespace lockstep
