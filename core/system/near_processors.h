// SPDX-License-Identifier: Apache-2.0
//
// The processors of a PCI device's NUMA node. For other processors, copies between host memory and the
// device, and its interrupts, cross the socket link.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sched.h>

namespace lockstep {

// Parses a list in Linux's format, "0-3,8"; nothing for any other text.
std::optional<cpu_set_t> parse_processors(std::string_view list);

// The processors near the device at a PCI address ("0000:3b:00.0"), read below root; nothing if the system
// does not list them.
std::optional<cpu_set_t> processors_near(const std::string& pci_address,
                                         const std::filesystem::path& root = "/sys");

}  // namespace lockstep
