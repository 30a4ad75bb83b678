// SPDX-License-Identifier: Apache-2.0
#include "comm/exchanges/exchanges.h"

#include "core/text/named_entries.h"

namespace lockstep {

const std::vector<const ExchangeKind*>& exchange_kinds() {
  static const std::vector<const ExchangeKind*> table = {
      &kDenseSum,      &kFp16Codec, &kBf16Codec, &kInt8Codec, &kSignCodec,
      &kPowerSgdCodec, &kTopKCodec, &kDgcCodec,  &kAutoCodec,
  };
  return table;
}

const ExchangeKind& exchange_kind(std::string_view name, const std::vector<const ExchangeKind*>& table) {
  return entry_named(name, table, "gradient codec");
}

}  // namespace lockstep
