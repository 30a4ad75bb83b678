// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// Means per step, over a block of consecutive steps.
struct BenchBlock {
  double step_seconds = 0;
  double exposed_seconds = 0;  // communication that no computation hides
  double busy = 0;             // see busy_share()
};

}  // namespace lockstep
