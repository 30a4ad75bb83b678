// SPDX-License-Identifier: Apache-2.0
//
// The exchanges of gradients that there are. Each is a file of this folder with its entry, {name, meaning,
// options, factory}, which exchanges.cpp lists.
#pragma once

#include <string_view>
#include <vector>

#include "comm/gradient_exchange.h"

namespace lockstep {

extern const ExchangeKind kDenseSum;  // what is taken where nobody says otherwise
// Codecs (comm/codecs/codec.h).
extern const ExchangeKind kFp16Codec;
extern const ExchangeKind kBf16Codec;
extern const ExchangeKind kInt8Codec;
extern const ExchangeKind kSignCodec;
extern const ExchangeKind kPowerSgdCodec;
extern const ExchangeKind kTopKCodec;
extern const ExchangeKind kDgcCodec;
// The choice among them by trial (comm/codecs/auto_exchange.h).
extern const ExchangeKind kAutoCodec;

// Those that are shipped.
const std::vector<const ExchangeKind*>& exchange_kinds();
// Throws ConfigError for a name that the table has not, naming those it has.
const ExchangeKind& exchange_kind(std::string_view name,
                                  const std::vector<const ExchangeKind*>& table = exchange_kinds());

}  // namespace lockstep
