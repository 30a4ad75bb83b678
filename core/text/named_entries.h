// SPDX-License-Identifier: Apache-2.0
//
// Tables of entries with names: networks, optimizers, schedules, codecs, data formats. An entry is a value or
// a pointer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {

template <typename Entry>
const Entry& entry_of(const Entry& entry) {
  return entry;
}
template <typename Entry>
const Entry& entry_of(const Entry* entry) {
  return *entry;
}

template <typename Table>
std::vector<std::string> names_in(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry_of(entry).name);
  return names;
}

// kind: "optimizer". Throws ConfigError with the allowed names.
template <typename Table>
const auto& entry_named(std::string_view name, const Table& table, std::string_view kind) {
  for (const auto& entry : table)
    if (entry_of(entry).name == name) return entry_of(entry);
  throw ConfigError(
      fmt::format("unknown {} \"{}\": allowed are {}", kind, name, fmt::join(names_in(table), ", ")));
}

}  // namespace lockstep
