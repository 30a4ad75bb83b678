// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/error.h"

namespace lockstep {

// The text of nlohmann's JSON on one line, or with indented lines. Replaces bytes that are not UTF-8.
template <typename Json>
std::string dumped(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// A callback for nlohmann's parse(). It throws DataError for JSON with more than `most` levels, because
// copying and writing a value are recursive. The message is "WHAT has more than MOST levels" and the remedy.
inline auto depth_limit(int most, const std::string& what = "its JSON", const std::string& remedy = "") {
  return [=](int depth, auto&&...) {
    if (depth > most) throw DataError(what + " has more than " + std::to_string(most) + " levels" + remedy);
    return true;
  };
}

}  // namespace lockstep
