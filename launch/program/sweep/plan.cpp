// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/plan.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/observe/run_files/event_command.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/layer_tables.h"
#include "launch/program/config/suggestions.h"
#include "launch/program/config/toml_text.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostSweepTrials = 100'000;
constexpr std::int64_t kUsualSweepTrials = 20;
constexpr std::array kSweepKeys = {"config", "set",    "method",     "objective", "jobs", "ranks",
                                   "trials", "epochs", "min_epochs", "eta",       "seed", "dir"};
constexpr std::array kRangeKeys = {"min", "max", "scale", "points"};

template <typename Names>
std::vector<std::string> as_words(const Names& names) {
  return {std::begin(names), std::end(names)};
}

// Reads the file, and collects all errors before it throws.
class SweepReader {
 public:
  SweepReader(const std::string& path, const Registry& registry)
      : path_(path), registry_(registry), keys_(detail::keys_of(registry)) {}

  SweepPlan read();

 private:
  void complain(const toml::node& node, const std::string& what) {
    problems_.push_back(fmt::format("{}:{}: {}", path_, node.source().begin.line, what));
  }
  void complain(const std::string& what) { problems_.push_back(fmt::format("{}: {}", path_, what)); }
  void throw_if_any() const {
    if (problems_.empty()) return;
    if (problems_.size() == 1) throw ConfigError(problems_.front());
    throw ConfigError(
        fmt::format("{} errors in the sweep file:\n  {}", problems_.size(), fmt::join(problems_, "\n  ")));
  }

  bool is_training(const toml::table& root) const;
  void read_sweep_section(const toml::table& table);
  void read_set(const toml::node& node);
  void read_axes(const toml::table& table);
  std::optional<SweepAxis> read_axis(const std::string& key, const toml::node& node);
  std::optional<SweepAxis> read_range(SweepAxis axis, const toml::table& table);
  struct NumberKey {
    bool number = false;
    bool whole = false;
  };
  NumberKey number_key(const std::string& name);
  bool may_be_searched(const std::string& key, const toml::node& node);
  bool allowed_value(const std::string& key, const toml::node& node);
  void load_base();
  void choose_trials();

  template <typename Number>
  void number(const toml::node& node, const std::string& name, std::type_identity_t<Number> least,
              std::type_identity_t<Number> most, Number& into);
  template <typename Enum>
  void word(const toml::node& node, const std::string& name, Enum& into);
  void text(const toml::node& node, const std::string& name, std::string& into);

  std::string path_;
  const Registry& registry_;
  std::vector<detail::Key> keys_;
  SweepPlan plan_;
  bool base_loaded_ = false;
  std::int64_t epochs_ = 0;
  std::vector<std::string> problems_;
};

// True if the file has sections of a training's configuration and none of a sweep.
bool SweepReader::is_training(const toml::table& root) const {
  if (root.contains("sweep") || root.contains("keys")) return false;
  for (const auto& [key, node] : root) {
    const std::string section(key.str());
    if (node.is_table() && std::ranges::find(keys_, section, &detail::Key::section) != keys_.end())
      return true;
  }
  return false;
}

template <typename Number>
void SweepReader::number(const toml::node& node, const std::string& name, std::type_identity_t<Number> least,
                         std::type_identity_t<Number> most, Number& into) {
  constexpr bool kWhole = std::is_integral_v<Number>;
  const std::optional<Number> given = kWhole ? node.value_exact<Number>() : node.value<Number>();
  if (given && *given >= least && *given <= most)
    into = *given;
  else
    complain(node, fmt::format("sweep.{} = {}: allowed are {} from {} to {}", name, toml_value(node),
                               kWhole ? "integers" : "numbers", least, most));
}

template <typename Enum>
void SweepReader::word(const toml::node& node, const std::string& name, Enum& into) {
  const std::vector<std::string> words = as_words(words_of(into));
  const auto given = node.value_exact<std::string>();
  if (const auto value = value_of<Enum>(given.value_or(""))) {
    into = *value;
    return;
  }
  complain(node, fmt::format("sweep.{} = {}: allowed are {}{}", name, toml_value(node),
                             fmt::join(words, ", "), did_you_mean(nearest(given.value_or(""), words))));
}

void SweepReader::text(const toml::node& node, const std::string& name, std::string& into) {
  const auto given = node.value_exact<std::string>();
  if (given && !given->empty())
    into = *given;
  else
    complain(node, fmt::format("sweep.{} = {}: expected a string that is not empty", name, toml_value(node)));
}

void SweepReader::read_set(const toml::node& node) {
  const toml::array* list = node.as_array();
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const auto each = (*list)[i].value_exact<std::string>();
    if (!each) {
      list = nullptr;
    } else if (const std::string shown = detail::without_secrets(*each); shown != *each) {
      complain(node,
               fmt::format("sweep.set: {}: a command is not accepted from a file, which another user may "
                           "have written; set the environment variable {}",
                           one_line(shown), kEventCommandVariable));
    } else if (trimmed(std::string_view(*each).substr(0, each->find('=')), " \t") == "run.dir") {
      complain(node, fmt::format("sweep.set: {}: the sweep sets run.dir for each trial; set dir in [sweep]",
                                 one_line(*each)));
    } else {
      plan_.set.push_back(*each);
    }
  }
  if (list == nullptr)
    complain(node, fmt::format("sweep.set = {}: expected a list of strings, such as [\"train.epochs=3\"]",
                               detail::without_secrets(toml_value(node))));
}

void SweepReader::read_sweep_section(const toml::table& table) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "config")
      text(node, name, plan_.config);
    else if (name == "set")
      read_set(node);
    else if (name == "method")
      word(node, name, plan_.method);
    else if (name == "objective")
      word(node, name, plan_.objective);
    else if (name == "jobs")
      number(node, name, 0, 4096, plan_.jobs);
    else if (name == "ranks")
      number(node, name, 1, 4096, plan_.ranks);
    else if (name == "trials")
      number(node, name, 1, kMostSweepTrials, plan_.most_trials);
    else if (name == "epochs")
      number(node, name, 1, 1'000'000, epochs_);
    else if (name == "min_epochs")
      number(node, name, 1, 1'000'000, plan_.min_epochs);
    else if (name == "eta")
      number(node, name, 1.5, 100.0, plan_.eta);
    else if (name == "seed")
      number(node, name, 0, 1'000'000'000, plan_.seed);
    else if (name == "dir")
      text(node, name, plan_.dir);
    else
      complain(node,
               fmt::format("unknown key sweep.{}{}; allowed are {}", one_line(name),
                           did_you_mean(nearest(name, as_words(kSweepKeys))), fmt::join(kSweepKeys, ", ")));
  }
}

bool SweepReader::may_be_searched(const std::string& key, const toml::node& node) {
  if (key.starts_with(kLayerPrefix)) {
    if (!base_loaded_) return false;
    const LayerPlace place =
        find_layer(plan_.base.model.layers, std::string_view(key).substr(kLayerPrefix.size()));
    if (!place.problem.empty()) complain(node, fmt::format("{}: {}", key, place.problem));
    return place.problem.empty();
  }
  if (std::ranges::find(keys_, key, &detail::Key::name) == keys_.end()) {
    complain(node, fmt::format("unknown key {}{}", one_line(key), did_you_mean(suggested_key(key, keys_))));
    return false;
  }
  const bool own = key.starts_with("run.") || key == "train.until_epoch";
  const bool length = plan_.method == SweepMethod::halving && (key == "train.epochs" || key == "train.steps");
  if (own)
    complain(node, fmt::format("{}: the sweep sets this key for each trial; remove it from [keys]", key));
  if (length)
    complain(node,
             fmt::format("{}: halving sets the length of each trial; use method = \"grid\" or \"random\" "
                         "to search this key",
                         key));
  return !own && !length;
}

bool SweepReader::allowed_value(const std::string& key, const toml::node& node) {
  try {
    check_override(key + "=" + toml_value(node), registry_, plan_.base.model.layers);
  } catch (const ConfigError& error) {
    complain(node, error.what());
    return false;
  }
  return true;
}

SweepReader::NumberKey SweepReader::number_key(const std::string& name) {
  if (name.starts_with(kLayerPrefix)) {
    using Type = LayerField::Type;
    const LayerField& field =
        *find_layer(plan_.base.model.layers, std::string_view(name).substr(kLayerPrefix.size())).field;
    return {field.type == Type::whole || field.type == Type::number, field.type == Type::whole};
  }
  const auto key = std::ranges::find(keys_, name, &detail::Key::name);
  Config defaults;
  const detail::Member member = key->member(defaults);
  const bool whole = std::holds_alternative<detail::Integer>(member) ||
                     std::holds_alternative<detail::IntegerOrAuto>(member) || key->whole;
  return {whole || std::holds_alternative<double*>(member), whole};
}

std::optional<SweepAxis> SweepReader::read_range(SweepAxis axis, const toml::table& table) {
  const auto known = [](std::string_view name) { return std::ranges::count(kRangeKeys, name) > 0; };
  for (const auto& [name, node] : table)
    if (!known(name.str()))
      complain(node, fmt::format("{}.{}: unknown key of a range; allowed are {}", axis.key,
                                 std::string(name.str()), fmt::join(kRangeKeys, ", ")));
  const auto [number, whole] = number_key(axis.key);
  if (!number) {
    complain(table, fmt::format("{}: a range needs a key with numbers; list the values instead, as in [..]",
                                axis.key));
    return std::nullopt;
  }
  const auto min = table["min"].value<double>(), max = table["max"].value<double>();
  const auto scale = table.contains("scale") ? table["scale"].value_or(std::string()) : "linear";
  const auto points = table["points"].value_exact<std::int64_t>().value_or(0);
  axis.range = {
      .min = min.value_or(0), .max = max.value_or(0), .logarithmic = scale == "log", .whole = whole};
  std::string wrong;
  if (!min || !max || !(*min < *max))
    wrong = "expected numbers min and max with min < max";
  else if (scale != "linear" && scale != "log")
    wrong = "scale must be \"linear\" or \"log\"";
  else if (axis.range.logarithmic && *min <= 0)
    wrong = "min must be above 0 if scale = \"log\"";
  else if (table.contains("points") && (points < 1 || points > 10'000))
    wrong = "points must be an integer from 1 to 10000";
  else if (points == 0 && plan_.method == SweepMethod::grid)
    wrong = "a grid needs points = N, the number of values in the range, or a list of values";
  if (!wrong.empty()) {
    complain(table, fmt::format("{} = {}: {}", axis.key, toml_value(table), wrong));
    return std::nullopt;
  }
  if (!allowed_value(axis.key, *table.get("min")) || !allowed_value(axis.key, *table.get("max")))
    return std::nullopt;
  if (points > 0) axis.values = values_of(axis.range, points);
  return axis;
}

std::optional<SweepAxis> SweepReader::read_axis(const std::string& key, const toml::node& node) {
  SweepAxis axis{.key = key, .values = {}};
  if (const toml::table* table = node.as_table()) return read_range(axis, *table);
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty()) {
    complain(node, fmt::format("{} = {}: expected a list of values, or a range such as {{ min = 0.001, max = "
                               "1.0, scale = \"log\" }}",
                               key, toml_value(node)));
    return std::nullopt;
  }
  for (const toml::node& each : *list) {
    const std::string value = toml_value(each);
    if (std::ranges::count(axis.values, value) > 0)
      complain(each, fmt::format("{}: {} is listed twice", key, value));
    else if (allowed_value(key, each))
      axis.values.push_back(value);
  }
  return axis;
}

// Reads "train.batch" = .. and train.batch = .. alike.
void SweepReader::read_axes(const toml::table& table) {
  std::vector<SweepAxis> axes;
  std::vector<std::pair<std::string, const toml::node*>> found;
  const auto is_section = [&](const std::string& name, const toml::table& level) {
    // model.layer.NAME.FIELD, unless the table is the range of a field
    if ((name + '.').starts_with(kLayerPrefix)) return !level.contains("min") && !level.contains("max");
    return std::ranges::any_of(keys_,
                               [&](const detail::Key& key) { return key.name.starts_with(name + '.'); });
  };
  const auto collect = [&](const auto& self, const std::string& prefix, const toml::table& level) -> void {
    for (const auto& [key, node] : level) {
      const std::string name = prefix + std::string(key.str());
      if (node.is_table() && is_section(name, *node.as_table()))
        self(self, name + '.', *node.as_table());
      else
        found.emplace_back(name, &node);
    }
  };
  collect(collect, "", table);
  // Restores the order of the file: toml++ sorts by name.
  std::ranges::stable_sort(found, {}, [](const auto& each) {
    return std::pair(each.second->source().begin.line, each.second->source().begin.column);
  });
  for (const auto& [name, node] : found) {
    if (!may_be_searched(name, *node)) continue;
    if (std::ranges::find(axes, name, &SweepAxis::key) != axes.end())
      complain(*node, fmt::format("{} is listed twice; keep one of the two lines", name));
    else if (std::optional<SweepAxis> axis = read_axis(name, *node))
      axes.push_back(std::move(*axis));
  }
  plan_.space = SweepSpace(std::move(axes));
}

void SweepReader::load_base() {
  if (epochs_ > 0) plan_.set.push_back(fmt::format("train.epochs={}", epochs_));
  try {
    plan_.base = load_config(plan_.config, plan_.set, registry_);
  } catch (const Error& error) {
    complain(fmt::format("sweep.config and sweep.set: {}", error.what()));
    return;
  }
  if (plan_.base.loader.batch == 0)
    complain(
        "train.batch = \"auto\": trials that run at once cannot time their batches, and the learning rate is "
        "chosen for a known one; run lockstep find-batch first");
  base_loaded_ = true;
  if (plan_.method != SweepMethod::halving) return;
  if (plan_.base.trainer.max_steps > 0)
    complain(fmt::format("train.steps = {} limits the steps, but halving counts epochs; set train.steps=0",
                         plan_.base.trainer.max_steps));
  if (plan_.base.until_epoch > 0)
    complain(fmt::format(
        "train.until_epoch = {} ends each trial early, but halving sets this key; remove it or set it to 0",
        plan_.base.until_epoch));
  if (plan_.base.trainer.epochs < plan_.min_epochs)
    complain(fmt::format("sweep.min_epochs = {} must be at most train.epochs = {}", plan_.min_epochs,
                         plan_.base.trainer.epochs));
}

void SweepReader::choose_trials() {
  const std::optional<std::int64_t> size = plan_.space.size();
  if (plan_.method == SweepMethod::grid) {
    if (size.value_or(0) > kMostSweepTrials)
      complain(fmt::format(
          "the grid has {} trials, but at most {} are allowed; list fewer values, or use method = \"random\" "
          "with trials = N",
          *size, kMostSweepTrials));
    else
      plan_.trials = plan_.space.grid();
    return;
  }
  std::int64_t count = plan_.most_trials;
  if (count == 0) count = size ? std::min(*size, kUsualSweepTrials) : kUsualSweepTrials;
  plan_.trials = plan_.space.draw(count, static_cast<std::uint64_t>(plan_.seed));
}

SweepPlan SweepReader::read() {
  const TomlText readable = readable_toml(
      toml_file_text(path_, "the sweep file", "; expected a TOML file (see lockstep help sweep)"));
  for (const SyntaxError& error : readable.errors)
    problems_.push_back(fmt::format("{}:{}:{}: {}", path_, error.line, error.column, error.what));
  const toml::table root = toml::parse(readable.text);
  if (readable.errors.empty() && is_training(root))
    throw ConfigError(fmt::format(
        "{} is the configuration of one training: to train it, run {}. To search over its keys, write "
        "another file, with this one as config in [sweep] and the values of each key in [keys]; lockstep "
        "help sweep has an example",
        path_, shell_command({"lockstep", "train", path_})));
  for (const auto& [name, node] : root)
    if (!node.is_table() || (name.str() != "sweep" && name.str() != "keys"))
      complain(node, fmt::format("{}: a sweep file has only the sections [sweep] and [keys]",
                                 std::string(name.str())));
  const toml::table* sweep = root["sweep"].as_table();
  const toml::table* keys = root["keys"].as_table();
  if (sweep != nullptr) read_sweep_section(*sweep);
  // The keys may name the layers of the base.
  std::vector<std::string> before = std::exchange(problems_, {});
  if (!plan_.config.empty()) load_base();
  const std::vector<std::string> of_the_base = std::exchange(problems_, std::move(before));
  if (keys != nullptr) read_axes(*keys);
  if (readable.errors.empty()) {
    if (sweep == nullptr || !sweep->contains("config"))
      complain(
          "config = \"..\" is missing in [sweep]; set it to a preset or a TOML file, as for lockstep train");
    if (keys == nullptr || keys->empty())
      complain("[keys] is missing or empty; list the keys to search, such as \"train.batch\" = [32, 64]");
  }
  problems_.insert(problems_.end(), of_the_base.begin(), of_the_base.end());
  throw_if_any();
  choose_trials();
  throw_if_any();
  return std::move(plan_);
}

}  // namespace

std::int64_t SweepPlan::integer_of(const TuneSettings& trial, const std::string& key, std::int64_t common) {
  const auto own = trial.find(key);
  return own == trial.end() ? common : number_from<std::int64_t>(own->second).value_or(common);
}

SweepRules SweepPlan::rules(std::int64_t slots) const {
  SweepRules rules{.objective = objective,
                   .trials = std::ssize(trials),
                   .rungs = {base.trainer.epochs},
                   .eta = eta,
                   .slots = slots};
  if (method == SweepMethod::halving) {
    rules.rungs = halving_rungs(base.trainer.epochs, min_epochs, eta);
    return rules;
  }
  for (const TuneSettings& trial : trials) {
    const std::int64_t epochs = integer_of(trial, "train.epochs", base.trainer.epochs);
    rules.own_epochs.push_back(base.until_epoch > 0 ? std::min(epochs, base.until_epoch) : epochs);
  }
  return rules;
}

std::string SweepPlan::identity() const {
  std::string text = fmt::format("[sweep]\nmethod = {}\nobjective = {}\nranks = {}\ntrials = {}\nseed = {}\n",
                                 word_of(method), word_of(objective), ranks, trials.size(), seed);
  if (method == SweepMethod::halving) text += fmt::format("eta = {}\nmin_epochs = {}\n", eta, min_epochs);
  text += "[keys]\n";
  for (const SweepAxis& axis : space.axes())
    text += axis.listed()
                ? fmt::format("{} = [{}]\n", axis.key, fmt::join(axis.values, ", "))
                : fmt::format("{} = {{ min = {}, max = {}, scale = \"{}\" }}\n", axis.key, axis.range.min,
                              axis.range.max, axis.range.logarithmic ? "log" : "linear");
  return text;
}

SweepPlan read_sweep(const std::string& path, const Registry& registry) {
  return SweepReader(path, registry).read();
}

}  // namespace lockstep
