// SPDX-License-Identifier: Apache-2.0
//
// Words of enums: words_of(value), declared beside an enum, names its values from 0 on.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>

namespace lockstep {

template <typename T>
concept EnumOfWords = std::is_enum_v<T> && requires(T value) {
  words_of(value);
};

constexpr std::string_view word_of(EnumOfWords auto value) {
  return words_of(value)[static_cast<std::size_t>(value)];
}

// The value with this word; nullopt for any other text.
template <EnumOfWords Enum>
std::optional<Enum> value_of(std::string_view word) {
  const auto words = words_of(Enum());
  const auto found = std::ranges::find(words, word);
  return found == words.end() ? std::nullopt : std::optional(static_cast<Enum>(found - words.begin()));
}

}  // namespace lockstep
