// SPDX-License-Identifier: Apache-2.0
#include "models/precision.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {

Precision parse_precision(std::string_view name) {
  const auto found = std::ranges::find(kPrecisionWords, name);
  if (found != std::end(kPrecisionWords)) return static_cast<Precision>(found - kPrecisionWords);
  throw ConfigError(fmt::format("precision \"{}\": allowed are {}", name, fmt::join(kPrecisionWords, ", ")));
}

}  // namespace lockstep
