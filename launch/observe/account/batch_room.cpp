// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/batch_room.h"

#include <fmt/format.h>

namespace lockstep {

std::string in_units(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1024.0 * 1024.0);
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace lockstep
