// SPDX-License-Identifier: Apache-2.0
//
// Definitions shared by the plans of convolutions (cuDNN) and of linear layers (cuBLASLt).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

// tf32: fp32 whose operands may be rounded to 10 bits of mantissa.
constexpr std::string_view name_of_precision(DType type, bool tf32) {
  return type == DType::f32 && tf32 ? "tf32" : name_of(type);
}

struct PlanLimits {
  std::size_t workspace_bytes = std::size_t{256} << 20;
  std::size_t plans = 8;  // at least 1

  // Allows 1/32 of the device's memory as workspace, but at least the default. cuDNN's fast fp32 engines copy
  // both activations to the workspace, 1.9 GiB for the first layer with a batch of 512 images of 224x224.
  // With 256 MiB such a batch trained at 239 samples/s on an H200, a batch of 32 at 2,132 samples/s.
  static PlanLimits for_memory(std::size_t device_bytes) {
    PlanLimits limits;
    limits.workspace_bytes = std::max(limits.workspace_bytes, device_bytes / 32);
    return limits;
  }
};

// Alignment of every tensor, in bytes.
inline constexpr std::size_t kPlanAlignment = 16;
// Alignment of the workspace, in bytes: that of cudaMalloc, because cuDNN does not guarantee to accept less.
inline constexpr std::size_t kWorkspaceAlignment = 256;

}  // namespace lockstep
