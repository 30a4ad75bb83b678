// SPDX-License-Identifier: Apache-2.0
//
// A Config as text: printed, compared, described.
#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "launch/config.h"
#include "launch/config_keys.h"

namespace lockstep {
namespace {

using detail::Key;
using detail::keys;

using Setting = std::pair<std::string, std::string>;

std::vector<Setting> settings(const std::string& toml) {
  std::vector<Setting> result;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (line.starts_with('['))
      section = line.substr(1, line.find(']') - 1);
    else if (equals != std::string::npos)
      result.emplace_back(section + '.' + line.substr(0, equals), line.substr(equals + 3));
  }
  return result;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string to_toml(const Config& config) {
  Config values = config;
  std::string text, section;
  for (const Key& key : keys()) {
    if (key.section() != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section());
      section = key.section();
    }
    text += fmt::format("{} = {}\n", key.short_name(), detail::value_text(key.member(values)));
  }
  return text;
}

std::string first_difference(const std::string& toml, const std::string& other) {
  const std::vector<Setting> ours = settings(toml), theirs = settings(other);
  const auto [mine, its] = std::ranges::mismatch(ours, theirs);
  if (mine == ours.end() && its == theirs.end()) return {};
  if (mine == ours.end()) return fmt::format("{}: nothing against {}", its->first, its->second);
  const bool same_key = its != theirs.end() && its->first == mine->first;
  return fmt::format("{}: {} against {}", mine->first, mine->second, same_key ? its->second : "nothing");
}

std::string describe_keys() {
  static constexpr const char* kTypes[] = {"bool", "integer", "number", "string", "list", "list"};
  static_assert(std::size(kTypes) == std::variant_size_v<detail::Member>);
  Config defaults;
  std::string text;
  for (const Key& key : keys()) {
    const detail::Member member = key.member(defaults);
    text += fmt::format("{:<30} {:<8} {:<14} {} ({})\n", key.name, kTypes[member.index()],
                        detail::value_text(member), key.description, detail::allowed(key));
  }
  return text;
}

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t least = word.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = &candidate;
    }
  }
  return best ? *best : std::string();
}

}  // namespace lockstep
