// SPDX-License-Identifier: Apache-2.0
#include "launch/program/own_command.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "launch/observe/run_files/event_command.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"

namespace lockstep {
namespace {

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

}  // namespace

std::vector<std::string> own_arguments(std::initializer_list<std::string_view> without) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    const std::size_t equals = word.find('=');
    if (std::ranges::find(without, word.substr(0, equals)) == without.end())
      words.push_back(word);
    else if (equals == std::string::npos)
      std::getline(file, word, '\0');  // its value
  }
  return words;
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words)
    command += (command.empty() ? "" : " ") + shell_word(shown_word(word));
  return command;
}

std::string remove_secrets(std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (const std::string& word : words)
    if (detail::without_secrets(word) == word)
      kept.push_back(word);
    else if (!kept.empty() && kept.back() == "--set")
      kept.pop_back();
  const bool removed = kept.size() < words.size();
  words = std::move(kept);
  if (!removed) return {};
  return fmt::format("run.event_command is not shown; add it, or set {}", kEventCommandVariable);
}

}  // namespace lockstep
