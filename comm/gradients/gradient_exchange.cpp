// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/gradient_exchange.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/named_entries.h"

namespace lockstep {
namespace {

void check_setting(const ExchangeKind& kind, const ExchangeSetting& setting) {
  const auto found = std::ranges::find(kind.options, setting.option, &NumberOption::name);
  if (found == kind.options.end()) {
    const std::vector<std::string> names = names_in(kind.options);
    throw ConfigError(
        fmt::format("the exchange \"{}\" has no option \"{}\"; it has {}", kind.name, setting.option,
                    names.empty() ? std::string("no options") : fmt::format("{}", fmt::join(names, ", "))));
  }
  const bool inside = setting.value >= found->least && setting.value <= found->most;
  if (inside && found->whole && setting.value != std::round(setting.value)) {
    throw ConfigError(
        fmt::format("comm.{}.{} = {}: allowed are whole numbers from {} to {}, the nearest is {}", kind.name,
                    setting.option, setting.value, found->least, found->most, std::round(setting.value)));
  }
  if (inside) return;
  const double nearest = setting.value > found->most ? found->most : found->least;
  throw ConfigError(fmt::format("{} of the exchange \"{}\" is {}; allowed are {} to {}, the nearest is {}",
                                setting.option, kind.name, setting.value, found->least, found->most,
                                nearest));
}

}  // namespace

void ExchangeChoice::check() const {
  for (const ExchangeSetting& setting : settings) check_setting(*kind, setting);
}

double ExchangeChoice::option(std::string_view name) const {
  const auto given = std::ranges::find(settings, name, &ExchangeSetting::option);
  if (given != settings.end()) return given->value;
  const auto found = std::ranges::find(kind->options, name, &NumberOption::name);
  CHECK(found != kind->options.end(), "the exchange \"{}\" has no option \"{}\"", kind->name, name);
  return found->initial;
}

std::string ExchangeChoice::describe() const {
  std::string text(kind->name);
  for (const NumberOption& each : kind->options) text += fmt::format(" {}={}", each.name, option(each.name));
  return text;
}

std::string CodecRules::describe() const {
  std::string text = compress_within_node ? "within nodes" : "between nodes";
  for (const CodecRule& rule : rules) text += fmt::format(", {}={}", rule.pattern, rule.choice.describe());
  return text;
}

}  // namespace lockstep
