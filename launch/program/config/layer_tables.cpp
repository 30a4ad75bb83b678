// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/layer_tables.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/text/named_entries.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"
#include "launch/program/config/toml_text.h"

namespace lockstep {
namespace {

using Type = LayerField::Type;

std::string allowed_in(const LayerField& field) {
  switch (field.type) {
    case Type::flag:
      return "true, false";
    case Type::word:
      return fmt::format("{}", fmt::join(field.words, ", "));
    case Type::text:
      return "strings that are not empty";
    default:
      break;
  }
  std::string text = fmt::format("{} from {} to {}", field.type == Type::whole ? "integers" : "numbers",
                                 field.least, field.most);
  if (!field.words.empty()) text += fmt::format(", or \"{}\"", fmt::join(field.words, "\", \""));
  return text;
}

// The value, if the field allows it.
std::optional<LayerValue> layer_value_of(const LayerField& field, const toml::node& node) {
  if (field.type == Type::flag) {
    if (const auto flag = node.value_exact<bool>()) return *flag;
    return std::nullopt;
  }
  if (const auto text = node.value_exact<std::string>()) {
    const bool allowed =
        field.type == Type::text ? !text->empty() : std::ranges::count(field.words, *text) > 0;
    return allowed ? std::optional<LayerValue>(*text) : std::nullopt;
  }
  if (field.type != Type::whole && field.type != Type::number) return std::nullopt;
  const auto whole = node.value_exact<std::int64_t>();
  const auto number = whole ? static_cast<double>(*whole) : node.value_exact<double>();
  if (!number || !(*number >= field.least && *number <= field.most)) return std::nullopt;
  if (field.type == Type::number) return *number;
  return whole ? std::optional<LayerValue>(*whole) : std::nullopt;
}

std::string unknown_field(const LayerKind& kind, const std::string& name) {
  std::vector<std::string> names = names_in(kind.fields);
  names.emplace_back("name");
  if (kind.holds_layers) names.emplace_back("layer");
  return fmt::format("unknown field {} of kind = \"{}\"{} It has {}", one_line(name), kind.name,
                     nearest(name, names).empty() ? "." : did_you_mean(nearest(name, names)),
                     fmt::join(names, ", "));
}

bool is_layer_name(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

class LayerReader {
 public:
  LayerReader(const std::string& file, const LayerComplaint& complain) : file_(file), complain_(complain) {}

  bool read(const toml::node& node, std::vector<LayerSpec>& layers) {
    layers.clear();
    const toml::array* tables = node.as_array();
    if (tables == nullptr || (!tables->empty() && !tables->is_homogeneous<toml::table>())) return false;
    for (const toml::node& each : *tables)
      if (std::optional<LayerSpec> spec = read_layer(*each.as_table())) layers.push_back(std::move(*spec));
    return true;
  }

  // Complains of layers with the same name.
  void check_names(const std::vector<LayerSpec>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto first = std::ranges::find(layers, layers[i].name, &LayerSpec::name);
      if (first != layers.begin() + static_cast<std::ptrdiff_t>(i))
        complain_(layers[i].line, fmt::format("name = \"{}\": another layer has this name", layers[i].name));
      check_names(layers[i].layers);
    }
  }

 private:
  std::optional<LayerSpec> read_layer(const toml::table& table) {
    LayerSpec spec;
    spec.file = file_;
    const std::uint32_t line = table.source().begin.line;
    if (!file_.empty()) spec.line = line;  // an override has no place
    const toml::node* named = table.get("kind");
    const LayerKind* kind =
        named == nullptr ? nullptr : find_layer_kind(named->value_exact<std::string>().value_or(""));
    if (kind == nullptr) {
      complain_of_kind(line, named);
      return std::nullopt;
    }
    spec.kind = kind->name;
    for (const auto& [key, node] : table)
      read_field(*kind, std::string(key.str()), node, key.source().begin.line, spec);
    for (const LayerField& field : kind->fields)
      if (field.required && !table.contains(field.name))
        complain_(line, fmt::format("kind = \"{}\": {} is missing; allowed are {}", kind->name, field.name,
                                    allowed_in(field)));
    if (kind->holds_layers && !table.contains("layer"))
      complain_(line, fmt::format("kind = \"{}\": it has no layers; describe them in tables "
                                  "[[model.layer.layer]] after it",
                                  kind->name));
    return spec;
  }

  void complain_of_kind(std::uint32_t line, const toml::node* given) {
    const std::vector<std::string> names = names_in(layer_kinds());
    if (given == nullptr)
      return complain_(line, fmt::format("a layer has no kind; allowed are {}", fmt::join(names, ", ")));
    complain_(given->source().begin.line,
              fmt::format("kind = {}: allowed are {}{}", shown_value(*given), fmt::join(names, ", "),
                          did_you_mean(nearest(given->value_exact<std::string>().value_or(""), names))));
  }

  void read_field(const LayerKind& kind, const std::string& name, const toml::node& node, std::uint32_t line,
                  LayerSpec& spec) {
    if (name == "kind") return;
    if (name == "name") {
      spec.name = node.value_exact<std::string>().value_or("");
      if (!is_layer_name(spec.name))
        complain_(line,
                  fmt::format("name = {}: allowed are names of letters, digits, _ and -", shown_value(node)));
      return;
    }
    if (name == "layer" && kind.holds_layers) {
      const bool read_all = read(node, spec.layers);
      if (!read_all || spec.layers.empty())
        complain_(line,
                  fmt::format("layer = {}: tables [[model.layer.layer]] are expected", shown_value(node)));
      return;
    }
    const LayerField* field = find_layer_field(kind, name);
    if (field == nullptr) return complain_(line, unknown_field(kind, name));
    if (std::optional<LayerValue> value = layer_value_of(*field, node))
      spec.values.emplace(name, std::move(*value));
    else
      complain_(line, fmt::format("{} = {}: allowed are {}", name, shown_value(node), allowed_in(*field)));
  }

  const std::string& file_;
  const LayerComplaint& complain_;
};

std::string layer_value_text(const LayerValue& value) {
  struct Printer {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t whole) const { return fmt::format("{}", whole); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return detail::quoted(text); }
  };
  return std::visit(Printer{}, value);
}

// A name of a layer is what TOML takes as a key without quotes.
std::string key_text(const std::string& key) { return is_layer_name(key) ? key : detail::quoted(key); }

}  // namespace

// toml++ 3.3 measures an array before it prints it, which is undefined for numbers below 0.1. So it prints
// only single values here.
std::string toml_value(const toml::node& node) {
  std::vector<std::string> parts;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& each : *list) parts.push_back(toml_value(each));
    return parts.empty() ? "[]" : fmt::format("[ {} ]", fmt::join(parts, ", "));
  }
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, each] : *table)
      parts.push_back(fmt::format("{} = {}", key_text(std::string(key.str())), toml_value(each)));
    return parts.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(parts, ", "));
  }
  if (const auto number = node.value_exact<double>()) {  // toml++ prints 0.1 as 0.10000000000000001
    const std::string text = fmt::format("{}", *number);
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
  std::ostringstream out;
  out << toml::toml_formatter(node, toml::format_flags::allow_unicode_strings);  // "text", not 'text'
  return one_line(out.str());
}

std::string shown_value(const toml::node& node) {
  constexpr std::size_t kMostBytes = 60;
  const std::string text = toml_value(node);
  if (text.size() <= kMostBytes) return text;
  std::size_t end = kMostBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end;  // inside a UTF-8 character
  return text.substr(0, end) + "...";
}

bool read_layers(const toml::node& node, const std::string& file, std::vector<LayerSpec>& layers,
                 const LayerComplaint& complain) {
  LayerReader reader(file, complain);
  if (!reader.read(node, layers)) return false;
  name_layers(layers);
  reader.check_names(layers);
  return true;
}

LayerPlace find_layer(std::vector<LayerSpec>& layers, std::string_view name_and_field) {
  std::vector<LayerSpec>* level = &layers;
  LayerPlace place;
  std::string_view rest = name_and_field;
  for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    const std::string name(rest.substr(0, dot));
    const auto found = std::ranges::find(*level, name, &LayerSpec::name);
    if (found == level->end()) {
      const std::vector<std::string> names = names_in(*level);
      place.problem =
          place.spec != nullptr && names.empty() ? fmt::format("layer {} holds no layers", place.spec->name)
          : names.empty()
              ? "the network has no [[model.layer]]"
              : fmt::format("no layer \"{}\"{} The layers are {}", one_line(name),
                            nearest(name, names).empty() ? "." : did_you_mean(nearest(name, names)),
                            fmt::join(names, ", "));
      return place;
    }
    place.spec = &*found;
    level = &found->layers;
    rest.remove_prefix(dot + 1);
  }
  if (place.spec == nullptr) {
    place.problem = "model.layer.NAME.FIELD is expected";
    return place;
  }
  const LayerKind& kind = *find_layer_kind(place.spec->kind);
  if (rest == "name" || rest == "kind" || rest == "layer") {
    place.problem = fmt::format("{} of a layer cannot be overridden; change it in the file", rest);
    return place;
  }
  place.field = find_layer_field(kind, rest);
  if (place.field == nullptr) place.problem = unknown_field(kind, std::string(rest));
  return place;
}

std::string set_layer_field(const LayerPlace& place, const toml::node& node) {
  std::optional<LayerValue> value = layer_value_of(*place.field, node);
  if (!value) return fmt::format("allowed are {}", allowed_in(*place.field));
  place.spec->values.insert_or_assign(std::string(place.field->name), std::move(*value));
  return {};
}

std::string layers_text(const std::vector<LayerSpec>& layers) {
  std::vector<std::string> tables;
  for (const LayerSpec& spec : layers) {
    std::string table =
        fmt::format("{{ kind = {}, name = {}", detail::quoted(spec.kind), detail::quoted(spec.name));
    for (const LayerField& field : find_layer_kind(spec.kind)->fields)
      if (const auto value = spec.values.find(field.name); value != spec.values.end())
        table += fmt::format(", {} = {}", field.name, layer_value_text(value->second));
    if (!spec.layers.empty()) table += ", layer = " + layers_text(spec.layers);
    tables.push_back(table + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace lockstep
