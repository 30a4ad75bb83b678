// SPDX-License-Identifier: Apache-2.0
#include "core/system/near_processors.h"

#include <charconv>
#include <fstream>

namespace lockstep {
namespace {

// Removes a number from the beginning of the text and returns it.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value >= CPU_SETSIZE) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

std::optional<cpu_set_t> parse_processors(std::string_view list) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  for (bool first = true; first || !list.empty(); first = false) {
    if (!first) {
      if (list.front() != ',') return std::nullopt;
      list.remove_prefix(1);
    }
    const std::optional<int> begin = take_number(list);
    std::optional<int> end = begin;
    if (begin && list.starts_with('-')) {
      list.remove_prefix(1);
      end = take_number(list);
    }
    if (!begin || !end || *end < *begin) return std::nullopt;
    for (int i = *begin; i <= *end; ++i) CPU_SET(static_cast<std::size_t>(i), &processors);
  }
  return processors;
}

std::optional<cpu_set_t> processors_near(const std::string& pci_address, const std::filesystem::path& root) {
  std::ifstream file(root / "bus/pci/devices" / pci_address / "local_cpulist");
  std::string line;
  if (pci_address.empty() || !std::getline(file, line)) return std::nullopt;
  return parse_processors(line);
}

}  // namespace lockstep
