// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/error.h"
#include "core/system/printable.h"

namespace lockstep {

// Applies valid_utf8() to the values that are texts.
template <typename Json>
void make_utf8(Json& json) {
  if (json.is_string()) json = valid_utf8(json.template get_ref<const std::string&>());
  if (json.is_structured())
    for (Json& each : json) make_utf8(each);
}

// The text of nlohmann's JSON on one line, or with indented lines. Bytes of values that are not UTF-8 become
// C escapes, "\xe9", so that names that differ stay different; those of keys become U+FFFD. ascii: other
// characters become "\u00e9".
template <typename Json>
std::string dumped(const Json& json, int indent = -1, bool ascii = false) {
  try {
    return json.dump(indent, ' ', ascii);
  } catch (const typename Json::type_error&) {
    Json copy = json;
    make_utf8(copy);
    return copy.dump(indent, ' ', ascii, Json::error_handler_t::replace);
  }
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
