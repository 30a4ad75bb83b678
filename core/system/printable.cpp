// SPDX-License-Identifier: Apache-2.0
#include "core/system/printable.h"

#include <cstdint>

#include <fmt/format.h>

namespace lockstep {
namespace {

struct Character {
  std::size_t bytes = 1;
  bool is_text = false;  // valid UTF-8
  std::uint32_t code = 0;
};

// The first character of the text.
Character first_of(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {.is_text = true, .code = first};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3f);
  }
  const bool shortest = code >= (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x80u);
  const bool possible = code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return shortest && possible ? Character{bytes, true, code} : Character{};
}

// ASCII control characters and the C1 set, which terminals also interpret.
bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

// Replaces bytes that are not UTF-8, and characters for which stays() is false.
std::string with_escapes(std::string_view text, bool (*stays)(std::uint32_t code)) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_of(text.substr(at));
    const bool is_kept = character.is_text && stays(character.code);
    for (const char byte : text.substr(at, character.bytes)) {
      if (is_kept)
        shown += byte;
      else
        shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    at += character.bytes;
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) {
  return with_escapes(text,
                      [](std::uint32_t code) { return code == '\n' || code == '\t' || !is_control(code); });
}
std::string printable_line(std::string_view text) {
  return with_escapes(text, [](std::uint32_t code) { return !is_control(code); });
}
std::string valid_utf8(std::string_view text) {
  return with_escapes(text, [](std::uint32_t) { return true; });
}

bool has_control_characters(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_of(text.substr(at));
    if (character.is_text && is_control(character.code)) return true;
    at += character.bytes;
  }
  return false;
}

}  // namespace lockstep
