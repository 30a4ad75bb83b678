// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

// What ranks do together in a step.
enum class StepKind {
  synchronous,  // exchange gradients
  local,        // nothing
  averaging,    // a local step, behind which they average parameters
};
inline constexpr std::size_t kStepKinds = 3;

}  // namespace lockstep
