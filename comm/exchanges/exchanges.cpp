// SPDX-License-Identifier: Apache-2.0
#include "comm/exchanges/exchanges.h"

#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr const ExchangeKind* kKinds[] = {
    &kDenseSum,
};

}  // namespace

std::span<const ExchangeKind* const> exchange_kinds() { return kKinds; }

const ExchangeKind& exchange_kind(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ExchangeKind* kind : kKinds) {
    if (kind->name == name) return *kind;
    names.push_back(kind->name);
  }
  throw ConfigError(
      fmt::format("unknown exchange of gradients \"{}\": allowed are {}", name, fmt::join(names, ", ")));
}

}  // namespace lockstep
