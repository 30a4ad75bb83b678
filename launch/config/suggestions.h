// SPDX-License-Identifier: Apache-2.0
//
// What somebody meant who wrote something else: the nearest word by spelling, and what other programs call
// our keys and values.
#pragma once

#include <span>
#include <string>

#include "launch/config/config_keys.h"

namespace lockstep {

// The candidate with the smallest edit distance to `word`, or empty if none is near (more than half its
// length).
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// The key of the configuration that `name` ("section.key", or a key alone) means; empty if none is near: what
// another program calls it, the right key in the wrong section, else what is spelled alike.
std::string suggested_key(const std::string& name, std::span<const detail::Key> keys = detail::keys());

// The same without guesses by spelling.
std::string known_key(const std::string& name, std::span<const detail::Key> keys = detail::keys());

// The one of `words` that `given` means: "cuda" for "gpu", else the nearest.
std::string suggested_word(const std::string& given, std::span<const std::string> words);

// "; did you mean WORD?", or nothing for no word.
std::string did_you_mean(const std::string& word);

}  // namespace lockstep
