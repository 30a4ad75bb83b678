// SPDX-License-Identifier: Apache-2.0
//
// The exchanges of gradients that there are. Each is a file of this folder with its entry, {name, options,
// factory}; to add one, declare the entry here and list it in exchanges.cpp.
#pragma once

#include <span>
#include <string_view>

#include "comm/gradient_exchange.h"

namespace lockstep {

extern const ExchangeKind kDenseSum;

std::span<const ExchangeKind* const> exchange_kinds();
// Throws ConfigError for an unknown name, naming those there are.
const ExchangeKind& exchange_kind(std::string_view name);

}  // namespace lockstep
