// SPDX-License-Identifier: Apache-2.0
//
// What the plans of convolutions (cuDNN) and linear layers (cuBLASLt) have in common.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/dtype.h"

namespace lockstep {

// tf32: fp32 whose operands may be rounded to 10 bits of mantissa.
constexpr std::string_view name_of_precision(DType type, bool tf32) {
  return type == DType::f32 && tf32 ? "tf32" : name_of(type);
}

struct PlanLimits {
  std::size_t workspace_bytes = std::size_t{256} << 20;
  std::size_t plans = 8;  // at least 1
};

// Of every tensor, in bytes.
inline constexpr std::size_t kPlanAlignment = 16;
// Of the workspace: what cudaMalloc gives; cuDNN promises to take nothing less.
inline constexpr std::size_t kWorkspaceAlignment = 256;

}  // namespace lockstep
