// SPDX-License-Identifier: Apache-2.0
//
// Replaces CUDA's header of this name: the conversions that kernels use.
#pragma once

#include "core/tensor/dtype.h"

struct __half {
  lockstep::Half value;
};
inline float __half2float(__half half) { return static_cast<float>(half.value); }
inline __half __float2half_rn(float value) { return {lockstep::Half(value)}; }
