// SPDX-License-Identifier: Apache-2.0
//
// The table of keys of Config: name, member, allowed values and meaning of every setting. Loading, checking,
// printing and suggestions are loops over it: a new setting is one row here and one member of an options
// struct in Config. Entries of a registry add their own keys (core/number_option.h).
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

#include "core/text/enum_words.h"
#include "launch/program/config/config.h"

namespace lockstep::detail {

// An integer of any width and sign; a value that does not fit is refused.
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

// An integer, or the word "auto", which the member stores as 0.
struct IntegerOrAuto : Integer {
  template <std::integral T>
  explicit IntegerOrAuto(T* value) : Integer(value) {}
  bool is_auto() const { return get(place) == 0; }
};
inline constexpr std::string_view kAutoWord = "auto";
inline constexpr std::string_view kLeastWord = "least";  // of a Recompute

// A bool, or an enum of two values without words, of which the second is true.
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

// An enum with words: words_of(value) is declared beside it and names its values from 0 on.
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
                            std::array<double, 3>*, Choice, std::vector<std::string>*,
                            std::vector<LayerSpec>*, Recompute*>;

inline bool is_text(const Member& member) {
  return std::holds_alternative<std::string*>(member) || std::holds_alternative<Choice>(member);
}

// Range of a number, or of each number in a list.
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
  // Allowed values of a string; empty: any string but the empty one. A Choice has its own.
  std::vector<std::string> words = {};
  bool ascending = false;         // a list
  std::string default_text = {};  // if the default depends on other keys
  bool whole = false;             // of a double: only integers are allowed
  bool several = false;           // a string of several words, see listed_words(), or "none"
  // A string, or "none". Printed as "redacted". A file may contain only "none" or "redacted"; --set refuses
  // "redacted".
  bool secret = false;

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string short_name() const { return name.substr(name.find('.') + 1); }
};

// In the order in which they are printed; keys of a section are adjacent.
std::vector<Key> keys_of(const Registry& registry);
// The keys of the default Registry.
std::span<const Key> keys();

// is_secret: true for a secret key of the default Registry. The other two return the printable form of a
// secret's value, or of a command line word that sets one ("--set=section.key=value"), which only shows
// whether there is a value.
bool is_secret(std::string_view name);
std::string shown_secret(const std::string& value);
std::string without_secrets(const std::string& word);

// One value as TOML, on one line.
std::string quoted(const std::string& text);
std::string value_text(const Member& member);

// Default of the key: its default_text, or the value in a default-constructed Config.
std::string default_of(const Key& key);

// "an integer >= 1": the type of the key's value.
std::string expected(const Key& key);
// "integers >= 1": the values that are allowed.
std::string allowed(const Key& key);

// "train.batch = 0: allowed are integers >= 1" for a value outside the key's range or words, else empty.
// `member` may be any member of the key's type.
std::string what_is_wrong(const Key& key, const Member& member);

}  // namespace lockstep::detail
