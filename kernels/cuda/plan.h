// SPDX-License-Identifier: Apache-2.0
//
// What the plans of convolutions (cuDNN) and linear layers (cuBLASLt) have in common.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/dtype.h"

namespace lockstep {

enum class AffineDirection { forward, backward_data, backward_weights };

constexpr std::string_view name_of(AffineDirection direction) {
  switch (direction) {
    case AffineDirection::forward:
      return "forward";
    case AffineDirection::backward_data:
      return "backward data";
    case AffineDirection::backward_weights:
      return "backward weights";
  }
  return "?";
}

// tf32: fp32 whose operands may be rounded to 10 bits of mantissa.
constexpr std::string_view name_of_precision(DType type, bool tf32) {
  return type == DType::f32 && tf32 ? "tf32" : name_of(type);
}

// The direction's result is written, the other two are read: y = w * x, x = w^T * y, or w = y * x^T. Tensors
// are aligned to kPlanAlignment, the workspace to kWorkspaceAlignment.
struct AffineOperands {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  void* workspace = nullptr;  // the plan's workspace_bytes()

  bool operator==(const AffineOperands&) const = default;
};

struct PlanLimits {
  std::size_t workspace_bytes = std::size_t{256} << 20;
  std::size_t plans = 8;  // at least 1
};

// Of every tensor, in bytes.
inline constexpr std::size_t kPlanAlignment = 16;
// Of the workspace: what cudaMalloc gives; cuDNN promises to take nothing less.
inline constexpr std::size_t kWorkspaceAlignment = 256;

}  // namespace lockstep
