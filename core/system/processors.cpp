// SPDX-License-Identifier: Apache-2.0
#include "core/system/processors.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::array kNames = {std::string_view("baseline"), std::string_view("avx2"),
                               std::string_view("avx512")};
static_assert(kNames.size() == static_cast<std::size_t>(InstructionSet::avx512) + 1);

InstructionSet largest_of_processor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return InstructionSet::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::avx2;
#endif
  return InstructionSet::baseline;
}

InstructionSet largest_allowed() {
  const char* value = std::getenv("LOCKSTEP_MAX_CPU_ISA");
  if (value == nullptr || *value == '\0') return InstructionSet::avx512;
  const auto found = std::ranges::find(kNames, std::string_view(value));
  if (found == kNames.end()) {
    throw ConfigError(
        fmt::format("LOCKSTEP_MAX_CPU_ISA={}: expected one of {}", value, fmt::join(kNames, ", ")));
  }
  return static_cast<InstructionSet>(found - kNames.begin());
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = std::min(largest_of_processor(), largest_allowed());
  return set;
}

std::string_view name_of(InstructionSet set) { return kNames[static_cast<std::size_t>(set)]; }

}  // namespace lockstep
