// SPDX-License-Identifier: Apache-2.0
//
// What libFuzzer runs: each target is a program of fuzz_main.cpp and one file that defines these two
// functions. An input ends well or in an error that is meant for people; everything else, a failed CHECK or
// any exception of another kind among it, is a finding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::fuzz {

// Tries one input. Finds out for itself whether what it gets is right, and throws Broken where it is not.
void try_input(std::string_view input);

// What a corpus begins with: small, and of every kind that is worth changing.
std::vector<std::string> seeds();

// A promise that was not kept.
struct Broken : std::exception {
  explicit Broken(std::string text) : what_happened(std::move(text)) {}
  const char* what() const noexcept override { return what_happened.c_str(); }
  std::string what_happened;
};
void require(bool kept, const std::string& promise);

// In memory, of this process alone; gone at its end.
const std::filesystem::path& folder();
// Creates or replaces a file there, and the folders it is in.
std::filesystem::path put(const std::filesystem::path& name, std::string_view bytes);

// Takes an input apart, from its front.
class Parts {
 public:
  explicit Parts(std::string_view input) : rest_(input) {}
  std::uint8_t byte();
  // As long as two bytes before it say, or the rest.
  std::string_view text();
  std::string_view rest() { return std::exchange(rest_, {}); }
  // What text() takes apart.
  static std::string of_text(std::string_view text);

 private:
  std::string_view rest_;
};

}  // namespace lockstep::fuzz
