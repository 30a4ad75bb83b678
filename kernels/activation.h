// SPDX-License-Identifier: Apache-2.0
//
// Activations: functions of one element whose derivative follows from their result, so that backward keeps
// the output only. They stand alone or close another kernel (batch norm, convolution).
#pragma once

namespace lockstep {

enum class Activation {
  none,
  relu,   // max(0, x)
  relu6,  // min(6, max(0, x)) (Howard et al., MobileNets, 2017)
};

}  // namespace lockstep
