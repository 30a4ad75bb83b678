// SPDX-License-Identifier: Apache-2.0
//
// Whole numbers out of JSON that strangers may have written: nlohmann::json makes an integer of any number,
// and of one that does not fit it, like 1e300, what C++ does not define.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep {

// Of the member `name` of an object. Throws DataError naming it where it is not a whole number from least to
// most, and the library's exception where there is no such member.
template <typename Json>
std::int64_t whole_number(const Json& object, std::string_view name, std::int64_t least, std::int64_t most) {
  const Json& value = object.at(std::string(name));
  if (!value.is_number_integer() || value < least || value > most)
    throw DataError(fmt::format("\"{}\" is no whole number from {} to {}", name, least, most));
  return value.template get<std::int64_t>();
}

}  // namespace lockstep
