// SPDX-License-Identifier: Apache-2.0
//
// TOML written by people: its syntax errors, and the text that can still be read.
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
  std::string text;  // parses without an error; line numbers are those of the input
  std::vector<SyntaxError> errors;
};

// The text of a file of at most 1 MiB. "what" names it in errors: "the configuration". The hint ends the
// error for a file that cannot be read. Throws IoError; ConfigError for a larger file.
std::string toml_file_text(const std::string& path, std::string_view what, std::string_view hint);

// Leaves out each line with an error, and with a section's name also its keys. If single lines cannot be left
// out (a list without an end, a file in another format), the text is empty and only the first error is
// returned: later errors of a parser are not useful.
TomlText readable_toml(std::string_view text);

// Replaces control characters with blanks: messages have one line, other libraries' texts may have several.
std::string one_line(std::string text);

}  // namespace lockstep
