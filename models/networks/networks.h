// SPDX-License-Identifier: Apache-2.0
//
// The networks that ship with Lockstep, by name. Each writes its layers into a Graph, with PyTorch's names
// for parameters.
#pragma once

#include <string>
#include <vector>

#include "models/graph.h"

namespace lockstep {

struct NetworkChoice {
  std::string name = "cnn";
  bool batch_norm = true;  // cnn only
};

std::vector<std::string> network_names();
// Throws ConfigError for an unknown name.
void build_network(Graph& graph, const NetworkChoice& choice);

// Two hidden layers of 512 and 256 with ReLU.
void mlp(Graph& graph);
// Two 3x3 convolutions (32, 64) with batch norm, ReLU and 2x2 max pooling, then 128 hidden features. Without
// batch norm the convolutions have biases.
void cnn(Graph& graph, bool batch_norm);
// ResNet for small images, 6 * blocks + 2 layers deep (He et al., 2015, section 4.2), with 1x1 convolutions
// where a shortcut changes shape. resnet20: blocks = 3.
void cifar_resnet(Graph& graph, int blocks);

}  // namespace lockstep
