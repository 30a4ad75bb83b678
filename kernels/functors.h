// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of elementwise operations, written once: the CPU backend loops over it, the CUDA backend
// launches it. Each is a plain value, callable on host and device.
#pragma once

#include "core/dtype.h"

namespace lockstep {

struct ReluForward {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
};

// From the output: y is positive exactly where x was.
struct ReluBackward {
  LOCKSTEP_HOST_DEVICE float operator()(float y, float y_gradient) const {
    return y > 0.0f ? y_gradient : 0.0f;
  }
};

struct Add {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

// uint8 pixel to (pixel / 255 - mean) / deviation, as scale * pixel + shift.
struct Normalize {
  float scale = 1.0f / 255.0f;
  float shift = 0.0f;

  static Normalize from(float mean, float deviation) {
    return {.scale = 1.0f / (255.0f * deviation), .shift = -mean / deviation};
  }
  LOCKSTEP_HOST_DEVICE float operator()(std::uint8_t pixel) const {
    return scale * static_cast<float>(pixel) + shift;
  }
};

// See SgdUpdate. Changes value and momentum buffer.
struct SgdStep {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;

  LOCKSTEP_HOST_DEVICE void operator()(float& value, float gradient, float& momentum_buffer) const {
    momentum_buffer = momentum * momentum_buffer + (gradient + weight_decay * value);
    value -= learning_rate * momentum_buffer;
  }
};

}  // namespace lockstep
