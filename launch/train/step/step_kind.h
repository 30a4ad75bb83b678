// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

// The data that ranks exchange in a step.
enum class StepKind {
  synchronous,  // gradients
  local,        // nothing
  averaging,    // a local step, then the ranks average parameters
};
inline constexpr std::size_t kStepKinds = 3;

}  // namespace lockstep
