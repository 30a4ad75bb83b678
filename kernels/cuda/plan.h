// SPDX-License-Identifier: Apache-2.0
//
// What the plans of convolutions (cuDNN) and linear layers (cuBLASLt) have in common.
#pragma once

#include <cstddef>
#include <string_view>

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

struct PlanLimits {
  std::size_t workspace_bytes = std::size_t{256} << 20;
  std::size_t plans = 8;  // at least 1
};

// Of every tensor, in bytes.
inline constexpr std::size_t kPlanAlignment = 16;
// Of the workspace: what cudaMalloc gives; cuDNN promises to take nothing less.
inline constexpr std::size_t kWorkspaceAlignment = 256;

}  // namespace lockstep
