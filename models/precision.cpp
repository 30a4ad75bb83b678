// SPDX-License-Identifier: Apache-2.0
#include "models/precision.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"

namespace lockstep {

Precision parse_precision(std::string_view name) {
  if (const auto precision = value_of<Precision>(name)) return *precision;
  throw ConfigError(fmt::format("precision \"{}\": allowed are {}", name, fmt::join(kPrecisionWords, ", ")));
}

}  // namespace lockstep
