// SPDX-License-Identifier: Apache-2.0
//
// Separate from message_of.h, because most tests need no regular expressions, which compile slowly.
#pragma once

#include <cstddef>
#include <iterator>
#include <regex>
#include <string>

namespace lockstep {

// The number of matches of the regular expression in the text. A dot matches no line feed.
inline std::ptrdiff_t matches_in(const std::string& text, const std::string& expression) {
  const std::regex regex(expression);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator());
}

}  // namespace lockstep
