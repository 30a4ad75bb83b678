// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// The text of nlohmann's JSON on one line, or with indented lines. Replaces bytes that are not UTF-8.
template <typename Json>
std::string dumped(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
