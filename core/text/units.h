// SPDX-License-Identifier: Apache-2.0
//
// Bytes in binary units.
#pragma once

#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace lockstep {

inline constexpr double kMiB = 1 << 20;
inline constexpr double kGiB = 1 << 30;

inline double in_mib(std::size_t bytes) { return static_cast<double>(bytes) / kMiB; }

// "12.5 MiB", "1.50 GiB".
inline std::string in_units(std::size_t bytes) {
  const double mib = in_mib(bytes);
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace lockstep
