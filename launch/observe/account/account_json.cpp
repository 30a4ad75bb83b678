// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/account_json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace lockstep {

nlohmann::ordered_json json_of(const StepAccount& account) {
  nlohmann::ordered_json json;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    json[std::string(name_of(static_cast<Phase>(phase)))] = account.seconds[phase];
  return json;
}

StepAccount account_from(const nlohmann::json& json) {
  StepAccount account;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const auto found = json.find(name_of(static_cast<Phase>(phase)));
    if (found == json.end() || !found->is_number()) continue;
    account.seconds[phase] = std::max(0.0, found->get<double>());
  }
  return account;
}

nlohmann::ordered_json json_of(const DeviceMemoryUse& use) {
  return {{"total", use.total},
          {"at_start", use.at_start},
          {"buffers", use.buffers},
          {"libraries", use.libraries},
          {"available", use.available}};
}

nlohmann::ordered_json json_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace lockstep
