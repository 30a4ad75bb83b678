// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// The lines that contain the part, each with its line feed.
inline std::string lines_naming(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (line.find(part) != std::string::npos) found += line + '\n';
  return found;
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
