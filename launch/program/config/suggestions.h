// SPDX-License-Identifier: Apache-2.0
//
// Suggestions for unknown words: the nearest word by spelling, and the names that other programs use for our
// keys and values.
#pragma once

#include <span>
#include <string>

#include "launch/program/config/config_keys.h"

namespace lockstep {

// The candidate with the smallest edit distance to `word`; empty if it is more than half the word's length.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// The key of the configuration that `name` ("section.key", or a key alone) probably means: the same name in
// another section, another program's name, or else a similar spelling. Empty if there is none.
std::string suggested_key(const std::string& name, std::span<const detail::Key> keys = detail::keys());

// As suggested_key(), without similar spellings.
std::string known_key(const std::string& name, std::span<const detail::Key> keys = detail::keys());

// The name of a key that a word of the command line resembles: "batch_size" of "--batch-size=3".
std::string key_named_by(const std::string& word);

// A word of the command line as messages show it: without the value of a secret, also where its key is
// misspelt.
std::string shown_word(const std::string& word);

// The one of `words` that `given` means: "cuda" for "gpu", else the nearest.
std::string suggested_word(const std::string& given, std::span<const std::string> words);

// "; did you mean WORD?"; empty for an empty word.
std::string did_you_mean(const std::string& word);

}  // namespace lockstep
