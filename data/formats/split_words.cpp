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

}  // namespace

std::vector<std::string> words_in(std::string_view name) {
  Words words;
  char before = ' ';
  for (const char c : name) {
    if (is_letter(c)) {
      if (!is_letter(before) || (is_capital(c) && !is_capital(before))) words.emplace_back();
      words.back() += is_capital(c) ? static_cast<char>(c - 'A' + 'a') : c;
    }
    before = c;
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
  return std::ranges::any_of(words_in(name),
                             [&](const std::string& word) { return std::ranges::count(words, word) > 0; });
}

bool names_both_splits(std::string_view name) {
  return has_word(name, kTrain) && (has_word(name, kTest) || has_word(name, kValidation));
}

}  // namespace lockstep
