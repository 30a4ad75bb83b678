// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {

// The message of the E that work() throws; "" if it throws nothing.
template <typename E = Error, typename Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// Expects that the message contains all parts.
inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
}

// Expects that the message contains the parts in this order.
inline void expect_in_order(const std::string& message, const std::vector<std::string>& parts) {
  std::size_t at = 0;
  for (const std::string& part : parts) {
    const std::size_t found = message.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << ": " << message;
    at = found + part.size();
  }
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}
// Length in bytes.
inline std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& line : lines_of(text)) longest = std::max(longest, line.size());
  return longest;
}

// The lines that contain all parts, each with its line feed.
inline std::string lines_naming(const std::string& text, const std::vector<std::string>& parts) {
  std::string found;
  for (const std::string& line : lines_of(text)) {
    const auto is_named = [&](const std::string& part) { return line.find(part) != std::string::npos; };
    if (std::ranges::all_of(parts, is_named)) found += line + '\n';
  }
  return found;
}
// The same with one or several parts as arguments.
template <typename... Parts>
std::string lines_naming(const std::string& text, const Parts&... parts) {
  return lines_naming(text, std::vector<std::string>{parts...});
}

// All numbers in the text, in order. A minus sign after a letter or a digit is a hyphen.
inline std::vector<double> numbers_named_in(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::vector<double> numbers;
  char before = ' ';
  for (const char* at = text.c_str(); *at != '\0';) {
    const bool negative = *at == '-' && std::isalnum(static_cast<unsigned char>(before)) == 0;
    if (!is_digit(negative ? at[1] : *at)) {
      before = *at++;
      continue;
    }
    char* end = nullptr;
    numbers.push_back(std::strtod(at, &end));
    before = '0';
    at = end;
  }
  return numbers;
}

}  // namespace lockstep
