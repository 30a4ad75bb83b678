// SPDX-License-Identifier: Apache-2.0
//
// A Config as text: printing, comparing, describing.
#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "core/system/wrapped_text.h"
#include "launch/program/config/config.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/config/config_keys.h"

namespace lockstep {
namespace {

using detail::Key;

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

bool has_key(const std::vector<Setting>& text, const std::string& key) {
  return std::ranges::find(text, key, &Setting::first) != text.end();
}

}  // namespace

std::string to_toml(const Config& config, const Registry& registry) {
  Config values = config;
  std::string text, section;
  for (const Key& key : detail::keys_of(registry)) {
    if (key.section() != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section());
      section = key.section();
    }
    if (key.name == "optimizer.learning_rate" && !config.rate_is_given && config.loader.batch == 0) {
      text += "# learning_rate is chosen for the batch that a training finds\n";
      continue;
    }
    const detail::Member member = key.member(values);
    const std::string value = key.secret
                                  ? detail::quoted(detail::shown_secret(*std::get<std::string*>(member)))
                                  : detail::value_text(member);
    text += fmt::format("{} = {}\n", key.short_name(), value);
  }
  return text;
}

std::string first_difference(const std::string& toml, const std::string& other) {
  const std::vector<Setting> ours = settings(toml), theirs = settings(other);
  const auto [mine, its] = std::ranges::mismatch(ours, theirs);
  if (mine == ours.end() && its == theirs.end()) return {};
  if (its == theirs.end() || (mine != ours.end() && !has_key(theirs, mine->first)))
    return fmt::format("{}: {} against nothing", mine->first, mine->second);
  if (mine == ours.end() || !has_key(ours, its->first))
    return fmt::format("{}: nothing against {}", its->first, its->second);
  if (mine->first != its->first) return fmt::format("order of keys: {} against {}", mine->first, its->first);
  return fmt::format("{}: {} against {}", mine->first, mine->second, its->second);
}

std::vector<KeyDifference> differences(const std::string& toml, const std::string& other) {
  const std::vector<Setting> ours = settings(toml), theirs = settings(other);
  std::vector<KeyDifference> found;
  for (const auto& [key, value] : ours) {
    const auto their = std::ranges::find(theirs, key, &Setting::first);
    if (their == theirs.end())
      found.push_back({key, value, ""});
    else if (their->second != value)
      found.push_back({key, value, their->second});
  }
  for (const auto& [key, value] : theirs)
    if (!has_key(ours, key)) found.push_back({key, "", value});
  return found;
}

std::string describe_keys(const Registry& registry) {
  std::string text;
  for (const Key& key : detail::keys_of(registry)) {
    text += fmt::format("  {} = {}\n", key.name, detail::default_of(key));
    text += wrapped(fmt::format("{} ({})", key.description, detail::allowed(key)), {.indent = 6}) + '\n';
  }
  return text;
}

std::string keys_as_markdown(const Registry& registry) {
  std::string text =
      "# Configuration\n\n"
      "Every key of a TOML file and of `--set section.key=value`. `lockstep keys --markdown` writes this "
      "page,\n"
      "and a test compares the two.\n";
  std::string section;
  for (const Key& key : detail::keys_of(registry)) {
    if (key.section() != section) {
      section = key.section();
      text += fmt::format("\n## [{}]\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n", section);
    }
    text += fmt::format("| `{}` | `{}` | {} | {} |\n", key.short_name(), detail::default_of(key),
                        detail::allowed(key), key.description);
  }
  return text + conflicts_as_markdown();
}

}  // namespace lockstep
