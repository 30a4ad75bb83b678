// SPDX-License-Identifier: Apache-2.0
//
// Which of a machine's processors a PCI device hangs on: those of its NUMA node. From others memory of the
// host that is copied to it, and interrupts from it, take the way between sockets.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sched.h>

namespace lockstep {

// A list as Linux writes it, "0-3,8"; nothing for any other text.
std::optional<cpu_set_t> parse_processors(std::string_view list);

// Of the device at such an address ("0000:3b:00.0"), as the system says below root; nothing where it does
// not.
std::optional<cpu_set_t> processors_near(const std::string& pci_address,
                                         const std::filesystem::path& root = "/sys");

}  // namespace lockstep
