// SPDX-License-Identifier: Apache-2.0
#include "models/precision.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"

namespace lockstep {

Precision parse_precision(std::string_view name) {
  const std::span known(kPrecisionWords, static_cast<std::size_t>(Precision::automatic));
  const auto precision = value_of<Precision>(name);
  if (precision && *precision != Precision::automatic) return *precision;
  throw ConfigError(fmt::format("precision \"{}\": allowed are {}", name, fmt::join(known, ", ")));
}

}  // namespace lockstep
