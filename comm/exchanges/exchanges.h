// SPDX-License-Identifier: Apache-2.0
//
// The table of gradient exchanges. Each exchange is a source file with an entry {name, meaning, options,
// factory}, which exchanges.cpp lists.
#pragma once

#include <string_view>
#include <vector>

#include "comm/gradients/gradient_exchange.h"

namespace lockstep {

extern const ExchangeKind kDenseSum;  // the default
// Selected by comm.exchange instead of comm.codec; not in exchange_kinds().
extern const ExchangeKind kShardedExchange;
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

// The built-in exchanges.
const std::vector<const ExchangeKind*>& exchange_kinds();
// Throws ConfigError for a name that is not in the table; the message lists the names that are.
const ExchangeKind& exchange_kind(std::string_view name,
                                  const std::vector<const ExchangeKind*>& table = exchange_kinds());

}  // namespace lockstep
