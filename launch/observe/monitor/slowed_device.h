// SPDX-License-Identifier: Apache-2.0
//
// SlowedDevice: a GPU whose clock is limited by heat or power while it works.
#pragma once

#include <optional>
#include <string>

#include "launch/observe/monitor/nvml.h"

namespace lockstep {

struct SlowedDevice {
  std::string name;           // "GPU 00000000:1B:00.0"
  std::string why;            // "hw_thermal_slowdown"
  double share_of_clock = 1;  // current clock over maximum clock
};

// Empty for clocks of at least 90 % of their maximum, and for clocks that neither heat nor power limits.
std::optional<SlowedDevice> slowed(const DeviceFigures& device);

}  // namespace lockstep
