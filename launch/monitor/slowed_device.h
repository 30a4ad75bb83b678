// SPDX-License-Identifier: Apache-2.0
//
// SlowedDevice: a GPU whose clock is held down, by heat or by power, while it works.
#pragma once

#include <optional>
#include <string>

#include "launch/monitor/nvml.h"

namespace lockstep {

struct SlowedDevice {
  std::string name;           // "GPU 00000000:1B:00.0"
  std::string why;            // "hw_thermal_slowdown"
  double share_of_clock = 1;  // of the most that it has
};

// Nothing for clocks within a tenth of their most, or that are low for no reason but a lack of work.
std::optional<SlowedDevice> slowed(const DeviceFigures& device);

}  // namespace lockstep
