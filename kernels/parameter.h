// SPDX-License-Identifier: Apache-2.0
//
// Parameter: one trained tensor, as the network, the gradient buckets and the optimizer see it. The three
// share one flat order: a parameter's elements lie at [offset, offset + layout.physical_elements()) of the
// parameter arena, of the gradient arena and of each optimizer state, in the order in which backward finishes
// gradients.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/layout.h"

namespace lockstep {

struct Parameter {
  std::string name;           // PyTorch's: "layer1.0.conv1.weight"
  Layout layout;              // of value and gradient; its shape is PyTorch's
  std::int64_t offset = 0;    // first element in each flat arena, aligned to kAlignment bytes
  float* value = nullptr;     // into the network's parameter arena
  float* gradient = nullptr;  // into the gradient arena of GradientBuckets; null until it is attached
};

// Told by the network, during backward, that the work which makes a parameter's gradient final has been
// enqueued. index is the parameter's place in Network::parameters().
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_ready(std::size_t index) = 0;
};

}  // namespace lockstep
