// SPDX-License-Identifier: Apache-2.0
//
// Replaces CUDA's header of this name: the conversions that kernels use.
#pragma once

#include "core/tensor/dtype.h"

struct __nv_bfloat16 {
  lockstep::BFloat16 value;
};
inline float __bfloat162float(__nv_bfloat16 bfloat) { return static_cast<float>(bfloat.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {lockstep::BFloat16(value)}; }
