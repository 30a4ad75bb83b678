// SPDX-License-Identifier: Apache-2.0
//
// What the plans of convolutions (cuDNN) and linear layers (cuBLASLt) have in common.
#pragma once

#include <algorithm>
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

  // A 32nd of the device's memory is allowed as workspace, or the default where that is more. cuDNN's fast
  // fp32 engines copy both activations there, 1.9 GiB for the first layer of a batch of 512 images of
  // 224x224; with 256 MiB such a batch trained at 239 samples/s on an H200, and one of 32 at 2,132.
  static PlanLimits for_memory(std::size_t device_bytes) {
    PlanLimits limits;
    limits.workspace_bytes = std::max(limits.workspace_bytes, device_bytes / 32);
    return limits;
  }
};

// Of every tensor, in bytes.
inline constexpr std::size_t kPlanAlignment = 16;
// Of the workspace: what cudaMalloc gives; cuDNN promises to take nothing less.
inline constexpr std::size_t kWorkspaceAlignment = 256;

}  // namespace lockstep
