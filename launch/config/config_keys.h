// SPDX-License-Identifier: Apache-2.0
//
// The table of keys behind Config: name, member, allowed values and meaning of every setting. Loading,
// checking, printing and suggestions are loops over it, so a new setting is one row here and the member that
// it binds: of one of the options structs that Config holds. Entries of a registry bring keys of their own
// (core/number_option.h).
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "launch/config/config.h"

namespace lockstep::detail {

// Of any width and sign; a value that it has no room for is refused.
struct Integer {
  template <std::integral T>
  requires(!std::same_as<T, bool>) Integer(T* value)
      : place(value),
        get([](const void* from) { return static_cast<std::int64_t>(*static_cast<const T*>(from)); }),
        set([](void* to, std::int64_t given) {
          if (!std::in_range<T>(given)) return false;
          *static_cast<T*>(to) = static_cast<T>(given);
          return true;
        }) {}

  void* place;
  std::int64_t (*get)(const void* from);
  bool (*set)(void* to, std::int64_t given);
};

template <typename T>
concept EnumOfWords = std::is_enum_v<T> && requires(T value) {
  words_of(value);
};

// An integer, or the word "auto", which the member keeps as 0.
struct IntegerOrAuto : Integer {
  template <std::integral T>
  explicit IntegerOrAuto(T* value) : Integer(value) {}
  bool is_auto() const { return get(place) == 0; }
};
inline constexpr std::string_view kAutoWord = "auto";

// A bool, or an enum of two values without words: the second is true.
struct Flag {
  template <typename T>
  requires std::same_as<T, bool> ||(std::is_enum_v<T> && !EnumOfWords<T>)Flag(T* value)
      : place(value),
        get([](const void* from) { return static_cast<bool>(*static_cast<const T*>(from)); }),
        set([](void* to, bool given) { *static_cast<T*>(to) = static_cast<T>(given); }) {}

  void* place;
  bool (*get)(const void* from);
  void (*set)(void* to, bool given);
};

// An enum of words: words_of(value) stands beside it and names its values from 0 on.
struct Choice {
  template <EnumOfWords Enum>
  Choice(Enum* value)
      : place(value),
        words(words_of(*value)),
        get([](const void* from) { return static_cast<std::size_t>(*static_cast<const Enum*>(from)); }),
        set([](void* to, std::size_t index) { *static_cast<Enum*>(to) = static_cast<Enum>(index); }) {}

  void* place;
  std::span<const std::string_view> words;
  std::size_t (*get)(const void* from);
  void (*set)(void* to, std::size_t index);
};

using Member = std::variant<Flag, Integer, IntegerOrAuto, double*, std::string*, std::vector<double>*,
                            std::array<double, 3>*, Choice, std::vector<std::string>*>;

inline bool is_text(const Member& member) {
  return std::holds_alternative<std::string*>(member) || std::holds_alternative<Choice>(member);
}

// Of a number, or of each number in a list.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // least itself is not allowed
  bool below_most = false;   // most itself is not allowed
};

struct Key {
  std::string name;  // section.key
  std::function<Member(Config&)> member;
  std::string description;
  Range range = {};
  // Of a string; empty: any that is not empty. A Choice brings its own.
  std::vector<std::string> words = {};
  bool ascending = false;         // a list
  std::string default_text = {};  // where the default depends on other keys
  bool whole = false;             // of a double: integers alone
  bool several = false;           // a string of some of the words, see listed_words(), or "none"
  // A string, or "none": it is printed as "redacted", and a file may give neither but these two.
  bool secret = false;

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string short_name() const { return name.substr(name.find('.') + 1); }
};

// In the order they are printed; keys of one section stand together.
std::vector<Key> keys_of(const Registry& registry);
// With what is shipped: where words do not matter, too.
std::span<const Key> keys();

// Whether there is a key of that name that is secret, and what may be shown of its value, or of a value in
// a word of a command line ("--set=section.key=value"): no more than whether there is one.
bool is_secret(std::string_view name);
std::string shown_secret(const std::string& value);
std::string without_secrets(const std::string& word);

// One value as TOML, on one line.
std::string quoted(const std::string& text);
std::string value_text(const Member& member);

// Of a default-constructed Config, or the key's default_text.
std::string default_of(const Key& key);

// "an integer >= 1", what one value of the key's type must be.
std::string expected(const Key& key);
// "integers >= 1", the values that are allowed.
std::string allowed(const Key& key);

// "train.batch = 0: allowed are integers >= 1" for a value outside the key's range or words, empty for
// others. It need not be the key's own member: any of the type.
std::string what_is_wrong(const Key& key, const Member& member);

}  // namespace lockstep::detail
