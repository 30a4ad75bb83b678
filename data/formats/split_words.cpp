// SPDX-License-Identifier: Apache-2.0
#include "data/formats/split_words.h"

#include <algorithm>

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

const Words kTrain = {"train", "training"};
const Words kTest = {"test", "testing"};
const Words kValidation = {"val", "valid", "validation", "dev", "eval"};

bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_capital(c) || (c >= 'a' && c <= 'z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// lower_case() of core/text/text.h, whose fmt the program lockstep-hdf5 does not link.
std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (is_capital(c)) c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

// Returns true if a word may end before name[at] and another begin there.
bool divides(std::string_view name, std::size_t at) {
  if (at == 0 || at == name.size()) return true;
  const char before = name[at - 1], after = name[at];
  if (is_digit(before) && is_digit(after)) return false;
  return !is_letter(before) || !is_letter(after) || (is_capital(after) && !is_capital(before));
}

}  // namespace

std::vector<std::string> words_in(std::string_view name, std::span<const std::string> known) {
  Words words;
  for (std::size_t begin = 0; begin < name.size();) {
    const auto is_here = [&](const std::string& word) {
      return !word.empty() && in_lower_case(name.substr(begin, word.size())) == in_lower_case(word) &&
             divides(name, begin + word.size());
    };
    const auto found = std::ranges::find_if(known, is_here);
    std::size_t end = begin + 1;
    if (found != known.end()) {
      end = begin + found->size();
      words.push_back(*found);
    } else {
      while (!divides(name, end)) ++end;
      if (is_letter(name[begin])) words.push_back(in_lower_case(name.substr(begin, end - begin)));
    }
    begin = end;
  }
  return words;
}

std::vector<std::vector<std::string>> split_words(Split split, const std::string& wanted) {
  if (split == Split::train) return {kTrain};
  if (wanted == "auto") return {kTest, kValidation};
  for (const Words& group : {kTest, kValidation})
    if (std::ranges::count(group, wanted) > 0) return {{wanted}, group};
  return {{wanted}};
}

bool has_word(std::string_view name, std::span<const std::string> words) {
  return std::ranges::any_of(words_in(name, words),
                             [&](const std::string& word) { return std::ranges::count(words, word) > 0; });
}

bool names_both_splits(std::string_view name, const std::string& wanted) {
  Words others = kTest;
  others.insert(others.end(), kValidation.begin(), kValidation.end());
  if (wanted != "auto" && std::ranges::count(kTrain, in_lower_case(wanted)) == 0) others.push_back(wanted);
  return has_word(name, kTrain) && has_word(name, others);
}

}  // namespace lockstep
