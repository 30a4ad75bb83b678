// SPDX-License-Identifier: Apache-2.0
//
// Activations: elementwise functions whose derivative can be computed from the result, so backward keeps only
// the output. They run as layers or fused into another kernel (batch norm, convolution).
#pragma once

namespace lockstep {

enum class Activation {
  none,
  relu,   // max(0, x)
  relu6,  // min(6, max(0, x)) (Howard et al., MobileNets, 2017)
};

}  // namespace lockstep
