// SPDX-License-Identifier: Apache-2.0
//
// ComputeRoof: how long forward and backward of a network take at best on a device, from shapes alone and two
// measured rates, and what bounds them (Williams et al., "Roofline", 2009, for each layer).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/graph.h"
#include "models/precision.h"

namespace lockstep {

struct DeviceRates {
  double gigaflops = 0;             // of products in the network's precision
  double gigabytes_per_second = 0;  // of its memory, read and written
};

// Of one pass over a layer, in seconds: all its products, and all that it must move, at these rates.
struct PassRoof {
  double products = 0, memory = 0;

  PassRoof(std::int64_t operations, std::int64_t bytes, const DeviceRates& rates)
      : products(static_cast<double>(operations) / rates.gigaflops * 1e-9),
        memory(static_cast<double>(bytes) / rates.gigabytes_per_second * 1e-9) {}
  double seconds() const { return memory_bound() ? memory : products; }
  bool memory_bound() const { return memory > products; }
};

// Of one micro-batch, in seconds.
struct ComputeRoof {
  double products = 0;  // all products of matrices, counted as direct convolution's
  double memory = 0;    // that layers take beyond theirs to move their tensors: those are bound by memory
  double weights = 0;   // of which it is weights and their gradients that travel, whatever the batch
  int kernels = 0;      // layers, each in its directions
  std::vector<std::string> bound_by_memory;  // kinds of layers that `memory` is most of, the dearest first
  // Vectors of so many channels that are not full: the share of products that would be done in the same time
  // and is not, and the layer that loses most of them ("conv1 (20 channels)").
  double unfilled = 0;
  std::string unfilled_layer;

  double seconds() const { return products + memory; }
};

// channels: that a vector of the device's, or a tile of its tensor cores, holds. Both rates are positive.
ComputeRoof compute_roof(const Graph& graph, Precision precision, const DeviceRates& rates, int channels);

}  // namespace lockstep
