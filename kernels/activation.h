// SPDX-License-Identifier: Apache-2.0
//
// Activations: elementwise functions. The derivative of all but gelu can be computed from the result, so
// backward keeps only the output. They run as layers; those that clamp also run inside another kernel (batch
// norm, convolution, linear).
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

enum class Activation {
  none,
  relu,     // max(0, x)
  relu6,    // min(6, max(0, x)) (Howard et al., MobileNets, 2017)
  sigmoid,  // 1 / (1 + exp(-x))
  tanh,
  gelu,  // x * P(X <= x) for standard normal X (Hendrycks and Gimpel, 2016), not the approximation by tanh
};
inline constexpr std::string_view kActivationWords[] = {"none", "relu", "relu6", "sigmoid", "tanh", "gelu"};
constexpr std::span<const std::string_view> words_of(Activation) { return kActivationWords; }

// True if other kernels can apply the activation to their result: those up to relu6.
constexpr bool is_fused(Activation activation) { return activation <= Activation::relu6; }
// True if 0 stays 0, as in the padding of a layout.
constexpr bool keeps_zero(Activation activation) { return activation != Activation::sigmoid; }
// True if backward reads the activation's input, not its result.
constexpr bool reads_input(Activation activation) { return activation == Activation::gelu; }

}  // namespace lockstep
