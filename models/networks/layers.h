// SPDX-License-Identifier: Apache-2.0
//
// Networks that a configuration describes layer by layer, without C++: model.name = "layers" with
// [[model.layer]] tables. layers.md is their reference.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/graph.h"

namespace lockstep {

inline constexpr const char* kLayersNetwork = "layers";

using LayerValue = std::variant<bool, std::int64_t, double, std::string>;

// A field of one kind of layer.
struct LayerField {
  enum class Type { flag, whole, number, word, text };

  std::string_view name;
  Type type = Type::whole;
  double least = 0;  // of a whole or a number
  double most = std::numeric_limits<double>::max();
  std::span<const std::string_view> words = {};  // allowed words; for a whole number: instead of it
  bool required = false;
};

// A kind of layer. Unnamed layers are called stem1, stem2 and so on.
struct LayerKind {
  std::string_view name;
  std::string_view stem;
  std::span<const LayerField> fields;
  bool holds_layers = false;
};
std::span<const LayerKind> layer_kinds();
// Null if there is none.
const LayerKind* find_layer_kind(std::string_view name);
const LayerField* find_layer_field(const LayerKind& kind, std::string_view name);

// A layer, or a block of layers, as a configuration describes it. Its fields were checked one by one.
struct LayerSpec {
  std::string kind;  // LayerKind::name
  std::string name;
  std::map<std::string, LayerValue, std::less<>> values;  // of the given fields
  std::vector<LayerSpec> layers;                          // of a block
  // Where it is described: for errors, and for the places of layers in profiles.
  std::string file;
  std::uint32_t line = 0;

  // The value of a field, or `otherwise` if it was not given.
  template <typename T>
  T value(std::string_view field, T otherwise) const {
    const auto found = values.find(field);
    return found == values.end() ? otherwise : std::get<T>(found->second);
  }
  bool given(std::string_view field) const { return values.contains(field); }
  // "own.toml:12: ", or nothing.
  std::string place() const;
};

// Names the layers that have no name by their kind and number, avoiding given names.
void name_layers(std::span<LayerSpec> layers);

// Appends the layers, which must outlive the graph: it refers to their files. Throws ConfigError with the
// place of the layer that does not fit.
void build_layers(Graph& graph, std::span<const LayerSpec> layers);

}  // namespace lockstep
