// SPDX-License-Identifier: Apache-2.0
//
// Counts, ranks and CSV fields as text; numbers, blanks, parts and letter case of text.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/ranges.h>

namespace lockstep {

// "1 rank", "2 ranks".
std::string counted(std::integral auto count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// The first items with commas between them, and the number of further ones: "1, 3 and 5 more".
std::string few_of(const auto& items, std::size_t most = 5) {
  const auto first = std::span(items).first(std::min(most, std::size(items)));
  const std::size_t more = std::size(items) - first.size();
  return fmt::format("{}{}", fmt::join(first, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

// "rank 1", "ranks 1, 3"; at most eight of them.
inline std::string named_ranks(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", few_of(ranks, 8));
}

// Removes the blanks at both ends.
inline std::string_view trimmed(std::string_view text, std::string_view blanks = " ") {
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

// The parts between separators; the whole text where there is none.
inline std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Changes the letters A to Z only.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

// A field of a CSV line, quoted where RFC 4180 requires it.
inline std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

// Parses the whole text as std::from_chars does, with its base; nullopt for any other text.
template <typename Number, typename... Base>
std::optional<Number> number_from(std::string_view text, Base... base) {
  Number number = {};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, base...);
  return error == std::errc() && end == last ? std::optional(number) : std::nullopt;
}

// Two significant digits or more, without an exponent from a magnitude of 0.0001 on: "0.12", "3.4", "56",
// "789".
inline std::string short_number(double value) {
  return value >= 10 || value <= -10 ? fmt::format("{:.0f}", value) : fmt::format("{:.2g}", value);
}

}  // namespace lockstep
