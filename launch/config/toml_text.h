// SPDX-License-Identifier: Apache-2.0
//
// TOML written by people: what in it is not TOML, and what can be read all the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct SyntaxError {
  std::uint32_t line = 0;    // from 1
  std::uint32_t column = 0;  // from 1, in characters
  std::string what;
};

struct TomlText {
  std::string text;  // parses without an error; each of its lines has the number that it was given with
  std::vector<SyntaxError> errors;
};

// Leaves out each line that is an error, and with the name of a section its keys. Where no such lines are to
// blame (a list without an end, a file in another format) the text is empty, and only the first error counts:
// what a parser says after it is of no use.
TomlText readable_toml(std::string_view text);

// Parsers and formatters of other people's texts may answer in several lines; messages have one.
std::string one_line(std::string text);

}  // namespace lockstep
