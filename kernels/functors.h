// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of elementwise operations, written once: the CPU backend loops over it, the CUDA backend
// launches it. Each is a plain value, callable on host and device.
#pragma once

#include "core/dtype.h"
#include "kernels/activation.h"

namespace lockstep {

// One Activation each: its value, and the gradient of x from the result y and its gradient.
struct Identity {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x; }
  LOCKSTEP_HOST_DEVICE float gradient(float, float y_gradient) const { return y_gradient; }
};

struct Relu {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
  LOCKSTEP_HOST_DEVICE float gradient(float y, float y_gradient) const {
    return y > 0.0f ? y_gradient : 0.0f;
  }
};

struct Relu6 {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x > 0.0f ? (x < 6.0f ? x : 6.0f) : 0.0f; }
  LOCKSTEP_HOST_DEVICE float gradient(float y, float y_gradient) const {
    return y > 0.0f && y < 6.0f ? y_gradient : 0.0f;
  }
};

// function(functor of the activation)
template <typename F>
void with_activation(Activation activation, F&& function) {
  switch (activation) {
    case Activation::none:
      return function(Identity());
    case Activation::relu:
      return function(Relu());
    case Activation::relu6:
      return function(Relu6());
  }
}

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
