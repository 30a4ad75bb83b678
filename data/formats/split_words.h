// SPDX-License-Identifier: Apache-2.0
//
// Finds words for a split (training, test, validation) in names of folders, files and arrays.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Runs of letters, in lower case: "X_train01" has x and train. A capital letter after a small one also begins
// a word. A known word may have digits and other characters, and matches in any case: where fold2 is known,
// "X_Fold2" has x and fold2, and "X_fold21" has x and fold.
std::vector<std::string> words_in(std::string_view name, std::span<const std::string> known);

// The words for a split, in groups, of which the first group that is found is used. Training: train or
// training. Test with wanted = "auto": test or testing; else val, valid, validation, dev or eval. Any other
// `wanted` (data.test_split): that word, then the other words of its group.
std::vector<std::vector<std::string>> split_words(Split split, const std::string& wanted);

// Returns true if the name contains one of the words as a whole word.
bool has_word(std::string_view name, std::span<const std::string> words);

// Returns true for a name with words of training and of another split, such as "train_test.csv". `wanted`
// (data.test_split) also counts as another split, unless it is a word of training.
bool names_both_splits(std::string_view name, const std::string& wanted);

}  // namespace lockstep
