// SPDX-License-Identifier: Apache-2.0
//
// The interface of a fuzz target: a program of fuzz_main.cpp and one file that defines try_input() and
// seeds(). An input must succeed or throw an Error other than a failed CHECK. Any other outcome is a finding.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::fuzz {

// Tries one input and checks the results. Throws Broken if a result is wrong.
void try_input(std::string_view input);

// The initial corpus: small inputs of every kind that is worth mutating.
std::vector<std::string> seeds();

// A violated requirement.
struct Broken : std::exception {
  explicit Broken(std::string text) : what_happened(std::move(text)) {}
  const char* what() const noexcept override { return what_happened.c_str(); }
  std::string what_happened;
};
void require(bool kept, std::string_view promise);

// A folder for this process only, in TMPDIR or, without it, in memory. It is removed at exit, but not after a
// finding.
const std::filesystem::path& folder();
// Creates or replaces a file in folder(). Creates its parent folders.
std::filesystem::path put(const std::filesystem::path& name, std::string_view bytes);

// Splits an input into parts, from its front.
class Parts {
 public:
  explicit Parts(std::string_view input) : rest_(input) {}
  std::uint8_t byte();
  // A text whose length is in the two bytes before it, or the rest if that is shorter.
  std::string_view text();
  std::string_view rest() { return std::exchange(rest_, {}); }
  // The bytes from which text() returns this text.
  static std::string of_text(std::string_view text);

 private:
  std::string_view rest_;
};

}  // namespace lockstep::fuzz
