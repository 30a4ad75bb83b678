// SPDX-License-Identifier: Apache-2.0
//
// Layers of a network as TOML: the tables [[model.layer]], and the overrides model.layer.NAME.FIELD.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// toml++ 3.3 asserts on malformed headers such as "[[[" just before it would report them.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "models/networks/layers.h"

namespace lockstep {

inline constexpr std::string_view kLayerPrefix = "model.layer.";

// A value as TOML, on one line; shown_value: the first 60 bytes, for messages.
std::string toml_value(const toml::node& node);
std::string shown_value(const toml::node& node);

// line: of the error, from 1.
using LayerComplaint = std::function<void(std::uint32_t line, const std::string& what)>;

// Replaces `layers` by the tables of an array, and names the unnamed. Errors go to `complain`; layers that
// have one are left out. file: for LayerSpec::file. Returns false if the node is not an array of tables.
bool read_layers(const toml::node& node, const std::string& file, std::vector<LayerSpec>& layers,
                 const LayerComplaint& complain);

// A field of a layer, by NAME.FIELD; a layer in a block is BLOCK.NAME.
struct LayerPlace {
  LayerSpec* spec = nullptr;
  const LayerField* field = nullptr;
  std::string problem = {};  // the reason why there is no such field; else empty
};
LayerPlace find_layer(std::vector<LayerSpec>& layers, std::string_view name_and_field);

// Sets the field. Returns what is wrong with the value, or nothing.
std::string set_layer_field(const LayerPlace& place, const toml::node& node);

// An array of inline tables, on one line.
std::string layers_text(const std::vector<LayerSpec>& layers);

}  // namespace lockstep
