// SPDX-License-Identifier: Apache-2.0
//
// NetworkPlan: everything about a Graph on a device that is decided before memory exists: the layers with
// their kernels and layouts, forks where a value is used more than once, and (plan_memory) which tensor lies
// where in the activation arena. Network allocates what this says and runs it.
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

// Made by one node and used by at most one: forks see to that.
struct PlannedValue {
  Layout layout;
  int producer = -1;  // node; -1: the input images
  int consumer = -1;  // node; -1: the loss
  bool wants_gradient = false;
  int addend = -1;      // value: its gradient, which is there before, is added to this one's by the consumer
  int data_block = -1;  // of the arena
  int gradient_block = -1;  // -1: none
};

struct PlannedNode {
  std::unique_ptr<PlannedLayer> layer;
  std::string name;
  int layer_index = -1;     // of the graph; -1: a fork
  std::vector<int> inputs;  // values
  std::vector<int> outputs;
  int saved_block = -1;
  bool frozen = false;        // its parameters are not trained
  bool goes_backward = true;  // false: nobody wants a gradient that it makes, and no backward of it runs
  bool recomputed = false;    // runs forward again before its block's backward; see plan_memory
};

// When a node runs, in the steps that blocks of the arena live by.
struct NodeTimes {
  int forward = 0;
  int recompute = -1;  // -1: never
  int backward = 0;
};

struct NodeRange {
  int first = 0;
  int last = 0;  // included
};

struct NetworkPlan {
  std::unique_ptr<ImageInputKernel> image_input;  // makes value 0
  std::vector<PlannedNode> nodes;                 // in forward order
  std::vector<PlannedValue> values;
  std::vector<NodeRange> recomputable;  // the graph's blocks, in order
  int logits = -1;
  bool needs_samples = false;  // training wants to know which samples it sees
  std::vector<ArenaBlock> blocks;
  std::vector<NodeTimes> times;  // by node
  int scratch_block = -1;
  ArenaPlan arena;
  std::size_t unshared_bytes = 0;  // if every tensor had memory of its own
  std::size_t kept_bytes = 0;      // of the arena, if nothing were recomputed
};

struct PlanOptions {
  Precision precision = Precision::fp32;
  // See ImageInput.
  std::span<const float> mean = {};
  std::span<const float> deviation = {};
  Augmentation augmentation = {};
  int batch_norm_ranks = 1;  // see BatchNormOptions::ranks
};

// Throws ConfigError for a graph without logits.
NetworkPlan plan_network(const Graph& graph, Backend& backend, KernelChoices& choices,
                         const PlanOptions& options = {});

}  // namespace lockstep
