// SPDX-License-Identifier: Apache-2.0
//
// In place of CUDA's header of this name: the conversions kernels use.
#pragma once

#include "core/dtype.h"

struct __nv_bfloat16 {
  lockstep::BFloat16 value;
};
inline float __bfloat162float(__nv_bfloat16 bfloat) { return static_cast<float>(bfloat.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {lockstep::BFloat16(value)}; }
