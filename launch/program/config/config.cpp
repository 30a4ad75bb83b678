// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/text/named_entries.h"
#include "core/text/text.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/config/config_defaults.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/layer_tables.h"
#include "launch/program/config/suggestions.h"
#include "launch/program/config/toml_text.h"

namespace lockstep {
namespace {

using detail::Key;
using detail::keys;

std::vector<std::string> sections() {
  std::vector<std::string> names;
  for (const Key& key : keys())
    if (names.empty() || names.back() != key.section()) names.push_back(key.section());
  return names;
}

std::optional<double> number(const toml::node& node) {
  if (const auto integer = node.value_exact<std::int64_t>()) return static_cast<double>(*integer);
  if (const auto floating = node.value_exact<double>()) return *floating + 0.0;  // -0.0 becomes 0
  return std::nullopt;
}

bool read(const toml::node& node, double& value) {
  const std::optional<double> given = number(node);
  value = given.value_or(value);
  return given.has_value();
}

bool read(const toml::node& node, std::string& value) {
  const auto given = node.value_exact<std::string>();
  if (given) value = *given;
  return given.has_value();
}

template <typename T>
bool read(const toml::node& node, std::vector<T>& list) {
  if (!node.is_array()) return false;
  list.clear();
  for (const toml::node& element : *node.as_array())
    if (!read(element, list.emplace_back())) return false;
  return true;
}

bool read(const toml::node& node, std::array<double, 3>& list) {
  std::vector<double> values;
  if (!read(node, values) || values.size() != list.size()) return false;
  std::ranges::copy(values, list.begin());
  return true;
}

bool read(const toml::node& node, const detail::Flag& flag) {
  const auto given = node.value_exact<bool>();
  if (given) flag.set(flag.place, *given);
  return given.has_value();
}

bool read(const toml::node& node, Recompute& recompute) {
  const auto flag = node.value_exact<bool>();
  const auto layers = node.value_exact<std::int64_t>();
  const auto word = node.value_exact<std::string>();
  if (flag)
    recompute = *flag ? Recompute::blocks : Recompute::nothing;
  else if (layers)
    recompute = Recompute::every(*layers);
  else if (word == detail::kAutoWord)
    recompute = Recompute::automatic;
  else if (word == detail::kLeastWord)
    recompute = Recompute::least;
  else
    return false;
  return true;
}

// Returns a value that does not fit the member.
std::optional<std::int64_t> read_integer(const toml::node& node, const detail::Integer& integer) {
  const auto given = node.value_exact<std::int64_t>();
  return given && !integer.set(integer.place, *given) ? given : std::nullopt;
}

// As above; 0 is reserved for the word "auto".
std::optional<std::int64_t> read_integer(const toml::node& node, const detail::IntegerOrAuto& integer) {
  if (node.value_exact<std::string>() == detail::kAutoWord) {
    integer.set(integer.place, 0);
    return std::nullopt;
  }
  const auto given = node.value_exact<std::int64_t>();
  if (given == 0) return given;
  return read_integer(node, static_cast<const detail::Integer&>(integer));
}

// Returns a word that is not one of the choice's. The words may include true and false, given as such.
std::optional<std::string> read_word(const toml::node& node, const detail::Choice& choice) {
  const auto flag = node.value_exact<bool>();
  const auto given = flag ? std::string(*flag ? "true" : "false") : node.value_exact<std::string>();
  const auto found = std::ranges::find(choice.words, given.value_or(""));
  if (found == choice.words.end()) return given;
  choice.set(choice.place, static_cast<std::size_t>(found - choice.words.begin()));
  return std::nullopt;
}

// "; did you mean ..." for a file that does not exist.
std::string suggested_preset(const std::string& path, const Registry& registry) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return std::ranges::count(preset_names(registry), stem) > 0 ? did_you_mean("the preset " + stem) : "";
}

bool is_regular_file(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown);
}

const std::string& preset_text(const std::string& name, const Registry& registry) {
  for (const Preset& preset : registry.presets)
    if (preset.name == name) return preset.text;
  const std::vector<std::string> names = preset_names(registry);
  std::string meant = nearest(name, names);
  if (is_regular_file(name + ".toml"))
    meant = fmt::format("the file {}.toml", name);
  else if (is_regular_file(name))
    meant = fmt::format("the file ./{}", name);
  throw ConfigError(fmt::format("unknown preset {}{} Presets: {}; a file is given as PATH.toml",
                                one_line(name), meant.empty() ? "." : did_you_mean(meant),
                                fmt::join(names, ", ")));
}

bool is_file(const std::string& preset_or_path) {
  return preset_or_path.find('/') != std::string::npos || preset_or_path.ends_with(".toml");
}

// The table {value = ...}; nothing if the text is no TOML value.
std::optional<toml::table> parse_toml_value(const std::string& text) {
  const TomlText readable = readable_toml("value = " + text);
  if (!readable.errors.empty()) return std::nullopt;
  toml::table table = toml::parse(readable.text);
  if (table.size() != 1) return std::nullopt;
  return table;
}

// An override as messages show it.
std::string shown_override(const std::string& text) { return one_line(detail::without_secrets(text)); }

// As parse_toml_value(), but throws ConfigError. A value other than a list, a table or a quoted string may be
// a bare word.
toml::table parse_value(const std::string& text, bool is_string, const std::string& override_text) {
  const bool delimited = text.starts_with('"') || text.starts_with('\'');
  const bool word = is_string && !delimited;
  std::optional<toml::table> value;
  if (!word) value = parse_toml_value(text);
  const bool maybe_word = word || (!delimited && !text.starts_with('[') && !text.starts_with('{'));
  if (!value && maybe_word) value = parse_toml_value(detail::quoted(text));
  if (!value)
    throw ConfigError(fmt::format("--set {}: the value is not valid TOML", shown_override(override_text)));
  return std::move(*value);
}

// Collects all errors of a configuration.
class Complaints {
 public:
  // line: in the file or preset of that name; 0: not in a file.
  void add(const std::string& name, std::uint32_t line, const std::string& what) {
    complaints_.push_back({line, line == 0 ? what : fmt::format("{}:{}: {}", name, line, what)});
  }
  void add(const std::string& name, const SyntaxError& error) {
    complaints_.push_back(
        {error.line, fmt::format("{}:{}:{}: {}", name, error.line, error.column, error.what)});
  }

  void throw_if_any() {
    if (complaints_.empty()) return;
    std::ranges::stable_sort(complaints_, {}, [](const Complaint& complaint) {
      return complaint.line == 0 ? std::numeric_limits<std::uint32_t>::max() : complaint.line;
    });
    if (complaints_.size() == 1) throw ConfigError(complaints_.front().text);
    std::string text = fmt::format("{} errors in the configuration:", complaints_.size());
    for (const Complaint& complaint : complaints_) text += "\n  " + complaint.text;
    throw ConfigError(text);
  }

 private:
  struct Complaint {
    std::uint32_t line;
    std::string text;
  };
  std::vector<Complaint> complaints_;
};

// Builds a Config from a file and overrides. It continues after errors and reports them together.
class Loader {
 public:
  explicit Loader(const Registry& registry) : registry_(registry), keys_(detail::keys_of(registry)) {}

  // name: of the file or preset, for messages.
  void read_file(std::string_view text, const std::string& name);
  void read_override(const std::string& text);
  Config finish();
  // The network that overrides of layers change.
  void set_layers(std::span<const LayerSpec> layers) {
    config_.model.layers.assign(layers.begin(), layers.end());
  }
  // Checks each value that was read, without conflicts between keys.
  void check_each() {
    all_read_ = false;  // a missing key is no error: the configuration may set it
    check_values();
    complaints_.throw_if_any();
  }

 private:
  struct Origin {
    std::string name;
    std::uint32_t line = 0;
    bool readable = true;                          // the value has the key's type
    std::optional<std::string> unknown_word = {};  // given for a Choice
    std::optional<std::int64_t> no_room_for = {};  // given for an Integer
  };

  void read_root(const toml::table& root, const std::string& name);
  void read_section(const std::string& section, const toml::table& table, const std::string& name);
  void assign(const Key& key, const toml::node& node, const Origin& origin);
  void read_layer_override(const std::string& name, std::string_view given, const std::string& text);
  void check_layers();
  // Reports a key's value at the place where it was given.
  void complain(const Key& key, const std::string& what) {
    const Origin& origin = origins_[&key];
    complaints_.add(origin.name, origin.line, what);
  }
  void check_values();
  void check_together();
  // Null if there is no such key.
  const Key* find_key(std::string_view name) const {
    const auto found = std::ranges::find(keys_, name, &Key::name);
    return found == keys_.end() ? nullptr : &*found;
  }
  bool given(const char* name) const { return origins_.contains(find_key(name)); }

  const Registry& registry_;
  const std::vector<Key> keys_;
  Config config_;
  std::map<const Key*, Origin> origins_;  // of the keys that were given a value
  Complaints complaints_;
  bool all_read_ = true;  // the file was valid TOML to its end
};

// Files are shared between users, and a secret key's value is a command that runs. A value of another type is
// refused here, too: other messages would show it.
bool is_refused_in_file(const Key& key, const toml::node& node) {
  const auto value = node.value_exact<std::string>();
  return key.secret && value != "none" && value != kRedacted;
}

std::string unknown_key(const std::string& name, std::span<const Key> keys) {
  return fmt::format("unknown key {}{}", one_line(name), did_you_mean(suggested_key(name, keys)));
}

void Loader::assign(const Key& key, const toml::node& node, const Origin& origin) {
  Origin& place = origins_[&key] = origin;
  const auto into = [&](const auto& member) {
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, detail::Choice>) {
      place.unknown_word = read_word(node, member);
      return node.is_string() || (node.is_boolean() && !place.unknown_word);
    } else if constexpr (std::is_same_v<std::decay_t<decltype(member)>, detail::Integer>) {
      place.no_room_for = read_integer(node, member);
      return node.is_integer();
    } else if constexpr (std::is_same_v<std::decay_t<decltype(member)>, detail::IntegerOrAuto>) {
      place.no_room_for = read_integer(node, member);
      return node.is_integer() || node.value_exact<std::string>() == detail::kAutoWord;
    } else if constexpr (std::is_same_v<std::decay_t<decltype(member)>, detail::Flag>) {
      return read(node, member);
    } else if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::vector<LayerSpec>*>) {
      return read_layers(node, origin.name, *member, [&](std::uint32_t line, const std::string& what) {
        const bool in_file = !origin.name.empty();
        complaints_.add(origin.name, in_file ? line : 0, in_file ? what : key.name + ": " + what);
      });
    } else {
      return read(node, *member);
    }
  };
  place.readable = std::visit(into, key.member(config_));
  if (!place.readable)
    complain(key, fmt::format("{} = {}: {} is expected", key.name, shown_value(node), detail::expected(key)));
}

void Loader::read_section(const std::string& section, const toml::table& table, const std::string& name) {
  const auto holds_keys = [&](const std::string& prefix) {
    return std::ranges::any_of(keys_, [&](const Key& key) { return key.name.starts_with(prefix); });
  };
  for (const auto& [key_name, node] : table) {
    const std::string full_name = fmt::format("{}.{}", section, key_name.str());
    const std::uint32_t line = key_name.source().begin.line;
    if (const Key* key = find_key(full_name); key != nullptr && is_refused_in_file(*key, node))
      complaints_.add(name, line,
                      fmt::format("{0}: a command is not accepted from a file, which another user may have "
                                  "written; set it with --set {0}=... or the environment variable {1}",
                                  full_name, kEventCommandVariable));
    else if (key != nullptr)
      assign(*key, node, {.name = name, .line = line});
    else if (node.is_table() && holds_keys(full_name + '.'))
      read_section(full_name, *node.as_table(), name);
    else
      complaints_.add(name, line, unknown_key(full_name, keys_));
  }
}

void Loader::read_file(std::string_view text, const std::string& name) {
  const TomlText readable = readable_toml(text);
  for (const SyntaxError& error : readable.errors) complaints_.add(name, error);
  all_read_ = readable.errors.empty();
  read_root(toml::parse(readable.text), name);
}

void Loader::read_root(const toml::table& root, const std::string& name) {
  const std::vector<std::string> known = sections();
  for (const auto& [key, node] : root) {
    const std::string section(key.str());
    const std::uint32_t line = key.source().begin.line;
    const bool exists = std::ranges::count(known, section) > 0;
    if (exists && node.is_table()) {
      read_section(section, *node.as_table(), name);
    } else if (exists) {
      complaints_.add(
          name, line,
          fmt::format("{} = {}: a section [{}] of keys is expected", section, shown_value(node), section));
    } else if (node.is_table() && section == "sweep") {
      // The only error: others of such a file do not help.
      throw ConfigError(
          fmt::format("{}:{}: the section [sweep] makes this a file for lockstep sweep; run lockstep sweep "
                      "with it, or give this command the configuration that its key config names",
                      name, line));
    } else if (node.is_table()) {
      const std::string near = nearest(section, known);
      complaints_.add(name, line,
                      fmt::format("unknown section [{}]{}", one_line(section),
                                  did_you_mean(near.empty() ? near : "[" + near + "]")));
    } else {
      complaints_.add(name, line, unknown_key(section, keys_));
    }
  }
}

void Loader::read_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name(trimmed(std::string_view(text).substr(0, equals), " \t"));
  if (equals == std::string::npos || name.empty())
    return complaints_.add("", 0,
                           fmt::format("--set {}: section.key=value is expected", shown_override(text)));
  if (name.starts_with(kLayerPrefix)) return read_layer_override(name, text.substr(equals + 1), text);
  const Key* key = find_key(name);
  if (!key) return complaints_.add("", 0, unknown_key(name, keys_));
  const detail::Member member = key->member(config_);
  const std::string value(trimmed(std::string_view(text).substr(equals + 1), " \t"));
  const bool is_string = detail::is_text(member) || (std::holds_alternative<detail::IntegerOrAuto>(member) &&
                                                     value == detail::kAutoWord);
  if (value.empty() && !is_string) {
    return complaints_.add(
        "", 0, fmt::format("--set {}: no value is given; {} is expected", text, detail::expected(*key)));
  }
  try {
    const toml::table parsed = parse_value(value, is_string, text);
    const toml::node& node = *parsed.get("value");
    if (key->secret && node.value_exact<std::string>() == kRedacted)
      throw ConfigError(
          fmt::format("{0} = \"{1}\": the files of a run have {1} in place of the command; give "
                      "the command itself, or none",
                      key->name, kRedacted));
    assign(*key, node, {});
  } catch (const ConfigError& error) {
    complaints_.add("", 0, error.what());
  }
}

void Loader::read_layer_override(const std::string& name, std::string_view given, const std::string& text) {
  const LayerPlace place =
      find_layer(config_.model.layers, std::string_view(name).substr(kLayerPrefix.size()));
  std::string problem = place.problem;
  try {
    if (problem.empty())
      problem =
          set_layer_field(place, *parse_value(std::string(trimmed(given, " \t")), false, text).get("value"));
  } catch (const ConfigError& error) {
    return complaints_.add("", 0, error.what());
  }
  if (!problem.empty()) complaints_.add("", 0, fmt::format("{}: {}", one_line(text), problem));
}

void Loader::check_values() {
  // A format without files reads no folder.
  const auto format = std::ranges::find(registry_.formats, config_.dataset.format, &DatasetFormat::name);
  const bool has_files = format == registry_.formats.end() || format->has_files;
  if (!has_files && config_.dataset.path.empty()) config_.dataset.path = "none";
  for (const Key& key : keys_) {
    const auto origin = origins_.find(&key);
    if (origin != origins_.end() && !origin->second.readable) continue;  // reported already
    if (origin == origins_.end() && !all_read_) continue;  // it may be in a line that could not be read
    std::string wrong = detail::what_is_wrong(key, key.member(config_));
    if (origin != origins_.end() && origin->second.unknown_word)
      wrong = detail::what_is_wrong(key, &*origin->second.unknown_word);
    if (origin != origins_.end() && origin->second.no_room_for)
      wrong = detail::what_is_wrong(key, &*origin->second.no_room_for);
    if (!wrong.empty()) complain(key, wrong);
  }
}

// Layers choose the network, unless its name is given.
void Loader::check_layers() {
  std::string& network = config_.model.name;
  const bool has_layers = !config_.model.layers.empty();
  if (has_layers && !given("model.name")) network = kLayersNetwork;
  if (has_layers && network != kLayersNetwork)
    complain(*find_key("model.layer"),
             fmt::format("model.layer: allowed only with model.name = \"{}\", not \"{}\"; remove one of them",
                         kLayersNetwork, network));
  if (!has_layers && network == kLayersNetwork)
    complain(*find_key("model.name"),
             fmt::format("model.name = \"{}\": describe the network in tables [[model.layer]]", network));
}

void Loader::check_together() {
  check_layers();
  for (const std::string& conflict : conflicts_in(config_)) {
    const auto* key = find_key(conflict.substr(0, conflict.find(' ')));
    CHECK(key != nullptr, "no key begins \"{}\"", conflict);
    complain(*key, conflict);
  }
  if (config_.schedule.scaling != RateScaling::none && !given("optimizer.learning_rate")) {
    complain(*find_key("optimizer.scale_rate"),
             fmt::format("optimizer.scale_rate = \"{}\": allowed only if optimizer.learning_rate is set, "
                         "because a chosen rate already suits the samples of each rank",
                         word_of(config_.schedule.scaling)));
  }
}

Config Loader::finish() {
  check_values();
  if (all_read_) check_together();
  complaints_.throw_if_any();
  if (config_.gradients.cross_barrier && !given("comm.bucket_mib")) config_.gradients.bucket_mib = {1, 1, 1};
  config_.rate_is_given = given("optimizer.learning_rate");
  if (!config_.rate_is_given) {
    config_.schedule.learning_rate = gentle_learning_rate(config_, registry_);
    if (!given("schedule.warmup_epochs")) config_.schedule.warmup_epochs = gentle_warmup_epochs(config_);
  }
  return config_;
}

}  // namespace

Config load_config(const std::string& preset_or_path, std::span<const std::string> overrides,
                   const Registry& registry) {
  Loader loader(registry);
  if (is_file(preset_or_path))
    loader.read_file(
        toml_file_text(preset_or_path, "the configuration", suggested_preset(preset_or_path, registry)),
        preset_or_path);
  else
    loader.read_file(preset_text(preset_or_path, registry), "preset " + preset_or_path);
  for (const std::string& text : overrides) loader.read_override(text);
  return loader.finish();
}

void check_override(const std::string& override_text, const Registry& registry,
                    std::span<const LayerSpec> layers) {
  Loader loader(registry);
  loader.set_layers(layers);
  loader.read_override(override_text);
  loader.check_each();
}

Config config_of(std::span<const std::string> overrides, const Registry& registry) {
  Loader loader(registry);
  for (const std::string& text : overrides) loader.read_override(text);
  return loader.finish();
}

std::vector<std::string> preset_names(const Registry& registry) {
  std::vector<std::string> names = names_in(registry.presets);
  std::ranges::sort(names);
  return names;
}

}  // namespace lockstep
