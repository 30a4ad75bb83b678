// SPDX-License-Identifier: Apache-2.0
//
// NetworkPlan: all decisions about a Graph on a device that need no memory: the layers with their kernels and
// layouts, forks for values that are used more than once, and (plan_memory) the place of each tensor in the
// activation arena. Network allocates and runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "models/arena.h"
#include "models/graph.h"
#include "models/planned_layer.h"
#include "models/precision.h"

namespace lockstep {

// A value is made by one node and used by at most one; forks ensure this.
struct PlannedValue {
  Layout layout;
  int producer = -1;  // node; -1: the input images
  int consumer = -1;  // node; -1: the loss
  bool wants_gradient = false;
  int addend = -1;      // value whose gradient, computed earlier, the consumer adds to this one's; -1: none
  int data_block = -1;  // block of the arena
  int gradient_block = -1;  // -1: none
};

struct PlannedNode {
  std::unique_ptr<PlannedLayer> layer;
  std::string name;
  int layer_index = -1;     // index in the graph; -1: a fork
  std::vector<int> inputs;  // values
  std::vector<int> outputs;
  int saved_block = -1;
  bool frozen = false;        // its parameters are not trained
  bool goes_backward = true;  // false: none of its gradients are needed, so its backward does not run
  bool recomputed = false;    // runs forward again before its range's backward; see plan_memory
};

// The times at which a node runs, in the steps of the arena's lifetimes.
struct NodeTimes {
  int forward = 0;
  int recompute = -1;  // -1: never
  int backward = 0;
};

struct NodeRange {
  int first = 0;
  int last = 0;  // inclusive
};

struct NetworkPlan {
  std::unique_ptr<ImageInputKernel> image_input;  // makes value 0
  std::vector<PlannedNode> nodes;                 // in forward order
  std::vector<PlannedValue> values;
  std::vector<NodeRange> blocks_of_graph;  // in order
  std::vector<NodeRange>
      repeated;  // disjoint and in order; those of their nodes that are `recomputed` run again
  int logits = -1;
  bool needs_samples = false;  // training passes need Batch::samples
  std::vector<ArenaBlock> blocks;
  std::vector<NodeTimes> times;  // by node
  int scratch_block = -1;
  ArenaPlan arena;
  std::size_t unshared_bytes = 0;  // size if tensors shared no memory
  std::size_t kept_bytes = 0;      // size of the arena if nothing were recomputed
};

struct PlanOptions {
  Precision precision = Precision::fp32;
  // See ImageInput.
  std::span<const float> mean = {};
  std::span<const float> deviation = {};
  Augmentation augmentation = {};
  int batch_norm_ranks = 1;  // see BatchNormOptions::ranks
};

// Throws ConfigError for a graph without logits, or with a layer whose result nothing uses.
NetworkPlan plan_network(const Graph& graph, Backend& backend, KernelChoices& choices,
                         const PlanOptions& options = {});

}  // namespace lockstep
