// SPDX-License-Identifier: Apache-2.0
//
// The table of keys behind Config: name, member, allowed values and meaning of every setting. Loading,
// checking, printing and suggestions are loops over it, so a new setting is one member of Config and one row
// here.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "launch/config.h"

namespace lockstep::detail {

using Member =
    std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<double>*, std::array<double, 3>*>;

// Of a number, or of each number in a list.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // least itself is not allowed
  bool below_most = false;   // most itself is not allowed
};

struct Key {
  std::string name;  // section.key
  Member (*member)(Config&);
  std::string description;
  Range range = {};
  std::vector<std::string> words = {};  // of a string; empty: any that is not empty
  bool ascending = false;               // a list
  std::string default_text = {};        // where the default depends on other keys

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string short_name() const { return name.substr(name.find('.') + 1); }
};

// In the order they are printed; keys of one section stand together.
std::span<const Key> keys();

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
// others.
std::string what_is_wrong(const Key& key, const Member& member);

}  // namespace lockstep::detail
