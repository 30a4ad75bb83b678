// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/account_json.h"

#include <nlohmann/json.hpp>

namespace lockstep {

nlohmann::ordered_json json_of(const StepAccount& account) {
  nlohmann::ordered_json json;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    json[std::string(name_of(static_cast<Phase>(phase)))] = account.seconds[phase];
  return json;
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
