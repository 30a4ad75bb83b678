// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/toml_text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/ranges.h>

#include "core/error.h"

// toml++ 3.3 asserts on malformed headers such as "[[[" just before it would report them.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

namespace lockstep {
namespace {

constexpr std::size_t kMostTomlBytes = std::size_t{1} << 20;
constexpr std::size_t kMostErrors = 8;  // with more errors, the file is probably not TOML

bool goes_on(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }  // a UTF-8 character

// The input for toml++, or the reason why it gets none.
struct Separated {
  std::string text;
  std::vector<std::size_t> added;  // positions in the text, ascending
  std::optional<SyntaxError> error;
  bool goes_beyond_the_line = false;  // the error concerns more than its line
};

SyntaxError error_at(std::string_view text, std::size_t at, const std::string& what) {
  const std::string_view before = text.substr(0, at);
  const std::size_t begin = before.rfind('\n') + 1;  // 0 if there is none
  const auto lines = std::ranges::count(before, '\n');
  const auto characters = std::ranges::count_if(before.substr(begin), [](char c) { return !goes_on(c); });
  return {static_cast<std::uint32_t>(lines + 1), static_cast<std::uint32_t>(characters + 1), what};
}

// The text with a blank before every string. toml++ 3.3 has undefined behaviour for letters beyond ASCII
// where a bare value may continue (0\u00e9, 0"\u00e9"). They are refused or made unreachable here. Multi-line
// strings are refused, too: they would be hard to detect here, and no key needs them.
Separated separate_strings(std::string_view text) {
  Separated result;
  char open = 0;  // the quote or '#' that this byte is inside of
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      open = 0;
    } else if (open == '"' && c == '\\' && i + 1 < text.size() && text[i + 1] != '\n') {
      result.text += text[i++];
    } else if (open != 0) {
      if (c == open && open != '#') open = 0;
    } else if (text.substr(i, 3) == "\"\"\"" || text.substr(i, 3) == "'''") {
      result.error =
          error_at(text, i, "strings of several lines are not supported; write the value on one line");
      result.goes_beyond_the_line = true;
      return result;
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      result.error = error_at(text, i, "only ASCII is allowed outside quotes and comments");
      return result;
    } else if (c == '"' || c == '\'' || c == '#') {
      if (c != '#') {
        result.added.push_back(result.text.size());
        result.text += ' ';
      }
      open = c;
    }
    result.text += text[i];
  }
  return result;
}

// The column in the text without the added blanks.
std::uint32_t column_before(const Separated& separated, std::uint32_t line, std::uint32_t column) {
  std::size_t begin = 0;
  for (std::uint32_t i = 1; i < line && begin < separated.text.size(); ++i)
    begin = std::min(separated.text.find('\n', begin), separated.text.size() - 1) + 1;
  std::size_t end = begin;
  for (std::uint32_t characters = 1; end < separated.text.size(); ++end) {
    if (end > begin && !goes_on(separated.text[end])) ++characters;
    if (characters == column) break;
  }
  const auto added =
      std::ranges::count_if(separated.added, [&](std::size_t at) { return at >= begin && at < end; });
  return column - static_cast<std::uint32_t>(added);
}

// Error in a text whose strings have blanks before them.
std::optional<SyntaxError> parse_error(const Separated& separated) {
  try {
    static_cast<void>(toml::parse(separated.text));
  } catch (const toml::parse_error& error) {
    const auto [line, column] = error.source().begin;
    return SyntaxError{line, column_before(separated, line, column),
                       one_line(std::string(error.description()))};
  }
  return std::nullopt;
}

bool begins_section(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t");
  return first != std::string::npos && line[first] == '[';
}

// Returns false for a blank line, which cannot be the cause.
bool leave_out(std::vector<std::string>& lines, std::uint32_t number) {
  if (number == 0 || number > lines.size()) return false;
  std::size_t line = number - 1;
  if (lines[line].find_first_not_of(" \t\r") == std::string::npos) return false;
  const bool section = begins_section(lines[line]);
  lines[line].clear();
  while (section && ++line < lines.size() && !begins_section(lines[line])) lines[line].clear();
  return true;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

std::string toml_file_text(const std::string& path, std::string_view what, std::string_view hint) {
  std::string text(kMostTomlBytes + 1, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (file.is_open()) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad())
    throw IoError(fmt::format("cannot read {} {}: {}{}", what, path, std::strerror(errno), hint));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostTomlBytes)
    throw ConfigError(
        fmt::format("cannot read {} {}: it is larger than 1 MiB; give a TOML file", what, path));
  return text;
}

TomlText readable_toml(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::vector<std::string> lines = lines_of(text);
  TomlText result;
  while (result.errors.size() <= kMostErrors) {
    Separated separated = separate_strings(fmt::format("{}\n", fmt::join(lines, "\n")));
    const std::optional<SyntaxError> error = separated.error ? separated.error : parse_error(separated);
    if (!error) {
      result.text = std::move(separated.text);
      return result;
    }
    result.errors.push_back(*error);
    if (separated.goes_beyond_the_line || !leave_out(lines, error->line)) break;
  }
  result.errors.resize(1);
  return result;
}

}  // namespace lockstep
