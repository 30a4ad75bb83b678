// SPDX-License-Identifier: Apache-2.0
//
// Batch norm needs more than one value per channel in training: the variance of one value is 0, and the
// layer's output is its shift alone, while the gradient is divided by sqrt(epsilon). PyTorch refuses it, too.
#pragma once

#include <cstdint>

#include "models/graph.h"

namespace lockstep {

// The samples that batch norm normalises together.
struct BatchNormSamples {
  std::int64_t tail = 0;           // of a short last global batch (data.tail = "exact"); 0: there is none
  std::int64_t micro_batches = 1;  // of a global batch, over all ranks
  int synchronized_ranks = 1;      // whose statistics are synchronised
};

// Throws ConfigError for a layer of batch norm that is trained, is not frozen and has one value per channel,
// in a micro-batch of the graph's batch or in the last one of an epoch. Names the layer, its shape and
// remedies.
void require_batch_norm_values(const Graph& graph, const BatchNormSamples& samples);

}  // namespace lockstep
