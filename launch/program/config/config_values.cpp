// SPDX-License-Identifier: Apache-2.0
//
// Values of keys: their text, and checks.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/text/text.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/layer_tables.h"
#include "launch/program/config/suggestions.h"

namespace lockstep::detail {
namespace {

std::string range_text(const Range& range) {
  const bool low = std::isfinite(range.least), high = std::isfinite(range.most);
  if (low && high && !range.above_least && !range.below_most)
    return fmt::format(" from {} to {}", range.least, range.most);
  std::string text;
  if (low) text = fmt::format(" {} {}", range.above_least ? ">" : ">=", range.least);
  if (high) text += fmt::format("{} {} {}", low ? " and" : "", range.below_most ? "<" : "<=", range.most);
  return text;
}

// The name of a type, for one value and for several.
struct Noun {
  const char* singular;
  const char* plural;
};
Noun noun_of(const Member& member, bool whole) {
  static constexpr Noun kNouns[] = {
      {"true or false", "true, false"},
      {"an integer", "integers"},
      {"an integer", "integers"},
      {"a number", "numbers"},
      {"a string", "strings that are not empty"},
      {"a list of{} numbers", "lists of{} numbers"},
      {"a list of 3 numbers", "lists of 3 numbers"},
      {"a word", "words"},
      {"a list of strings", "lists of strings that are not empty"},
      {"a list of layers", "lists of layers"},
      {"true, false, \"auto\", \"least\" or an integer", "true, false, \"auto\", \"least\", integers"}};
  static_assert(std::size(kNouns) == std::variant_size_v<Member>);
  return kNouns[whole ? 1 : member.index()];
}

std::string describe(const Key& key, const char* Noun::*number) {
  Config config;
  const std::string noun = fmt::format(fmt::runtime(noun_of(key.member(config), key.whole).*number),
                                       key.ascending ? " ascending" : "");
  const bool may_be_auto = std::holds_alternative<IntegerOrAuto>(key.member(config));
  return noun + range_text(key.range) + (may_be_auto ? fmt::format(", or \"{}\"", kAutoWord) : "");
}

bool in_range(const Range& range, double value) {
  return (range.above_least ? value > range.least : value >= range.least) &&
         (range.below_most ? value < range.most : value <= range.most);
}

// Each call returns an error message, or an empty string if the value is valid.
struct Checker {
  const Key& key;
  const Member& member;

  std::string refusal(const std::string& reason) const {
    return fmt::format("{} = {}: {}", key.name, value_text(member), reason);
  }
  std::string number(double value) const {
    if (!std::isfinite(value)) return refusal("only finite numbers are allowed");
    const bool fits = in_range(key.range, value) && (!key.whole || value == std::floor(value));
    if (!fits) return refusal("allowed are " + allowed(key));
    const auto narrow = static_cast<double>(static_cast<float>(value));
    const bool strict = (key.range.above_least && narrow <= key.range.least) ||
                        (key.range.below_most && narrow >= key.range.most);
    return strict ? refusal(fmt::format("rounded to fp32 it is {}; allowed are {}", narrow, allowed(key)))
                  : "";
  }

  std::string operator()(const Flag&) const { return {}; }
  std::string operator()(const Choice&) const { return {}; }
  std::string operator()(const Integer& value) const {
    return number(static_cast<double>(value.get(value.place)));
  }
  std::string operator()(const IntegerOrAuto& value) const {
    return value.is_auto() ? "" : (*this)(static_cast<const Integer&>(value));
  }
  std::string operator()(const double* value) const { return number(*value); }
  std::string operator()(const std::string* value) const {
    if (value->empty() && key.words.empty())
      return fmt::format("{0} is empty: set it in the file or with --set {0}=...", key.name);
    if (key.several) return several(*value);
    if (key.words.empty() || std::ranges::count(key.words, *value)) return {};
    return refusal("allowed are " + allowed(key) + did_you_mean(suggested_word(*value, key.words)));
  }
  std::string several(const std::string& value) const {
    if (value == "none") return {};
    const std::vector<std::string> given = listed_words(value);
    if (given.empty()) return refusal("allowed are " + allowed(key));
    for (const std::string& word : given) {
      if (std::ranges::count(key.words, word)) continue;
      return refusal(fmt::format("unknown word {}; allowed are {}{}", quoted(word), allowed(key),
                                 did_you_mean(suggested_word(word, key.words))));
    }
    return {};
  }
  std::string operator()(const std::vector<std::string>* list) const {
    return std::ranges::count(*list, "") > 0 ? refusal("allowed are " + allowed(key)) : "";
  }
  std::string operator()(const std::vector<LayerSpec>*) const { return {}; }  // checked as they are read
  std::string operator()(const Recompute* value) const {
    const bool has_number = value->scope == Recompute::Scope::segments;
    return has_number ? number(static_cast<double>(value->layers)) : "";
  }
  template <typename List>
  std::string operator()(const List* list) const {
    for (const double value : *list)
      if (std::string wrong = number(value); !wrong.empty()) return wrong;
    const bool ordered =
        !key.ascending || std::ranges::adjacent_find(*list, std::greater_equal<>()) == list->end();
    return ordered ? "" : refusal("allowed are " + allowed(key));
  }
};

}  // namespace

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\u{:04X}", byte);
    else
      result += c;
  }
  return result + '"';
}

std::string value_text(const Member& member) {
  struct Printer {
    std::string operator()(const Flag& flag) const { return flag.get(flag.place) ? "true" : "false"; }
    std::string operator()(const Integer& value) const { return fmt::format("{}", value.get(value.place)); }
    std::string operator()(const IntegerOrAuto& value) const {
      return value.is_auto() ? quoted(std::string(kAutoWord)) : (*this)(static_cast<const Integer&>(value));
    }
    std::string operator()(const double* value) const { return fmt::format("{}", *value); }
    std::string operator()(const std::string* value) const { return quoted(*value); }
    std::string operator()(const std::vector<double>* list) const {
      return fmt::format("[{}]", fmt::join(*list, ", "));
    }
    std::string operator()(const Choice& choice) const {
      const std::string word(choice.words[choice.get(choice.place)]);
      return word == "true" || word == "false" ? word : quoted(word);
    }
    std::string operator()(const std::array<double, 3>* list) const {
      return fmt::format("[{}]", fmt::join(*list, ", "));
    }
    std::string operator()(const std::vector<LayerSpec>* layers) const { return layers_text(*layers); }
    std::string operator()(const Recompute* value) const {
      switch (value->scope) {
        case Recompute::Scope::nothing:
          return "false";
        case Recompute::Scope::blocks:
          return "true";
        case Recompute::Scope::segments:
          return fmt::format("{}", value->layers);
        case Recompute::Scope::automatic:
          return quoted(std::string(kAutoWord));
        case Recompute::Scope::least:
          return quoted(std::string(kLeastWord));
      }
      return {};
    }
    std::string operator()(const std::vector<std::string>* list) const {
      std::vector<std::string> texts;
      std::ranges::transform(*list, std::back_inserter(texts), quoted);
      return fmt::format("[{}]", fmt::join(texts, ", "));
    }
  };
  return std::visit(Printer{}, member);
}

std::string expected(const Key& key) {
  if (key.several) return allowed(key);
  return key.words.empty() ? describe(key, &Noun::singular)
                           : fmt::format("one of {}", fmt::join(key.words, ", "));
}

std::string allowed(const Key& key) {
  if (key.several) return fmt::format("none, or some of {}, separated by commas", fmt::join(key.words, ", "));
  return key.words.empty() ? describe(key, &Noun::plural) : fmt::format("{}", fmt::join(key.words, ", "));
}

std::string default_of(const Key& key) {
  Config defaults;
  return key.default_text.empty() ? value_text(key.member(defaults)) : key.default_text;
}

std::string what_is_wrong(const Key& key, const Member& member) {
  return std::visit(Checker{key, member}, member);
}

bool is_secret(std::string_view name) {
  const auto found = std::ranges::find(keys(), name, &Key::name);
  return found != keys().end() && found->secret;
}

std::string shown_secret(const std::string& value) { return value == "none" ? value : kRedacted; }

std::string without_secrets(const std::string& word) {
  for (const Key& key : keys()) {
    if (!key.secret) continue;
    const std::size_t name = word.find(key.name);
    if (name == std::string::npos) continue;
    std::size_t end = word.find('=', name);
    if (end == std::string::npos) end = word.find(' ', name);  // a forgotten '='
    if (end == std::string::npos) continue;
    const std::string_view value = trimmed(std::string_view(word).substr(end + 1), " \t");
    return value == "none" || value == "\"none\"" ? word : word.substr(0, end + 1) + kRedacted;
  }
  return word;
}

}  // namespace lockstep::detail
