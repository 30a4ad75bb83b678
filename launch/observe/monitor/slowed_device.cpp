// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/slowed_device.h"

#include <fmt/ranges.h>

namespace lockstep {
namespace {

constexpr double kAsFast = 0.9;
// nvml.h's clocks event reasons: software's power cap, hardware's slowdown, heat by software and by hardware,
// and the power brake. Other reasons (application clocks, sync boost) are configured by users.
constexpr std::uint64_t kHeldDown = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

}  // namespace

std::optional<SlowedDevice> slowed(const DeviceFigures& device) {
  const std::uint64_t reasons = device.clock_reasons.value_or(0) & kHeldDown;
  if (reasons == 0 || !device.sm_mhz || device.sm_mhz_most.value_or(0) == 0) return std::nullopt;
  const double share = static_cast<double>(*device.sm_mhz) / static_cast<double>(*device.sm_mhz_most);
  if (share <= 0 || share > kAsFast) return std::nullopt;
  return SlowedDevice{.name = "GPU " + device.pci_bus_id,
                      .why = fmt::format("{}", fmt::join(clock_reason_words(reasons), ", ")),
                      .share_of_clock = share};
}

}  // namespace lockstep
