// SPDX-License-Identifier: Apache-2.0
#include "comm/exchanges/exchanges.h"

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {

const std::vector<const ExchangeKind*>& exchange_kinds() {
  static const std::vector<const ExchangeKind*> table = {
      &kDenseSum,      &kFp16Codec, &kBf16Codec, &kInt8Codec, &kSignCodec,
      &kPowerSgdCodec, &kTopKCodec, &kDgcCodec,  &kAutoCodec,
  };
  return table;
}

const ExchangeKind& exchange_kind(std::string_view name, const std::vector<const ExchangeKind*>& table) {
  std::vector<std::string_view> names;
  for (const ExchangeKind* kind : table) {
    if (kind->name == name) return *kind;
    names.push_back(kind->name);
  }
  throw ConfigError(
      fmt::format("unknown gradient codec \"{}\": allowed are {}", name, fmt::join(names, ", ")));
}

}  // namespace lockstep
