// SPDX-License-Identifier: Apache-2.0
//
// ComputeRoof: a lower bound for the time of a network's forward and backward on a device, from shapes and
// two measured rates, and what limits it (Williams et al., "Roofline", 2009, applied to each layer).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/graph.h"
#include "models/network_plan.h"
#include "models/precision.h"

namespace lockstep {

struct DeviceRates {
  double gigaflops = 0;             // for products in the network's precision
  double gigabytes_per_second = 0;  // of its memory, read and written
};

// One pass over a layer: seconds for all its products and for all its memory traffic, at these rates.
struct PassRoof {
  double products = 0, memory = 0;

  PassRoof(std::int64_t operations, std::int64_t bytes, const DeviceRates& rates)
      : products(static_cast<double>(operations) / rates.gigaflops * 1e-9),
        memory(static_cast<double>(bytes) / rates.gigabytes_per_second * 1e-9) {}
  double seconds() const { return memory_bound() ? memory : products; }
  bool memory_bound() const { return memory > products; }
};

// The bound for one micro-batch, in seconds.
struct ComputeRoof {
  double products = 0;  // all matrix products
  double memory = 0;    // extra time of memory-bound layers beyond their products
  double weights = 0;   // part of `memory` for weights and their gradients, at any batch size
  int kernels = 0;      // number of passes: layers times their directions
  std::vector<std::string> bound_by_memory;  // layer kinds that cause most of `memory`, largest first
  // Loss from vectors that the channels do not fill: the fraction of possible products that are not used, and
  // the layer that loses most, with its channels.
  double unfilled = 0;
  std::string unfilled_layer;
  std::int64_t unfilled_channels = 0;
  int channels = 0;  // that fill a vector

  double seconds() const { return products + memory; }
};

// channels: the number that a vector of the device, or a tile of its tensor cores, holds. Both rates must be
// positive. nodes: planned for the graph; products then count as their kernels execute them (executed_flops).
ComputeRoof compute_roof(const Graph& graph, Precision precision, const DeviceRates& rates, int channels,
                         std::span<const PlannedNode> nodes = {});

}  // namespace lockstep
