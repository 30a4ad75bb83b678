// SPDX-License-Identifier: Apache-2.0
//
// Optimizer arithmetic over flat memory: parameters, gradients and state share offsets, so one call updates a
// whole range of parameters.
#pragma once

#include <cstdint>

namespace lockstep {

// Stochastic gradient descent with momentum, PyTorch's form:
//   g = gradient + weight_decay * value;  m = momentum * m + g;  value -= learning_rate * m
// The first step's m is g, because m starts at zero.
struct SgdUpdate {
  std::int64_t count = 0;
  float* value = nullptr;
  const float* gradient = nullptr;
  float* momentum_buffer = nullptr;
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
};

}  // namespace lockstep
