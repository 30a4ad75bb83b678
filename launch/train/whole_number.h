// SPDX-License-Identifier: Apache-2.0
//
// Whole numbers from untrusted JSON: nlohmann::json converts any number to an integer, which is undefined in
// C++ for one that does not fit, such as 1e300.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep {

// Throws DataError with `name` if the value is not a whole number from least to most.
template <typename Json>
std::int64_t as_whole_number(const Json& value, std::string_view name, std::int64_t least,
                             std::int64_t most) {
  if (!value.is_number_integer() || value < least || value > most)
    throw DataError(fmt::format("\"{}\" must be a whole number from {} to {}", name, least, most));
  return value.template get<std::int64_t>();
}

// as_whole_number() of the member `name` of an object. Throws the library's error if there is none.
template <typename Json>
std::int64_t whole_number(const Json& object, std::string_view name, std::int64_t least, std::int64_t most) {
  return as_whole_number(object.at(std::string(name)), name, least, most);
}

}  // namespace lockstep
