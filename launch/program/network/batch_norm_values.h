// SPDX-License-Identifier: Apache-2.0
//
// Refuses batch norm layers that have one value per channel in training. The variance of one value is 0, so
// the output is the layer's shift alone, and the gradient is divided by sqrt(epsilon). PyTorch refuses it,
// too.
#pragma once

#include <cstdint>

#include "models/graph.h"

namespace lockstep {

// The samples that batch norm normalises together.
struct BatchNormSamples {
  std::int64_t tail = 0;           // size of a short last batch (data.tail = "exact"); 0: none
  std::int64_t micro_batches = 1;  // per global batch, over all ranks
  int synchronized_ranks = 1;      // ranks that synchronise batch norm statistics
};

// Throws ConfigError if a trained batch norm layer that is not frozen has one value per channel, in a
// micro-batch of the graph's batch size or in the last one of an epoch. The message names the layer, its
// shape and remedies.
void require_batch_norm_values(const Graph& graph, const BatchNormSamples& samples);

}  // namespace lockstep
