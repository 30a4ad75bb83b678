// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/export_facts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "core/system/printable.h"
#include "core/text/json_text.h"

namespace lockstep {
namespace {

using FactsJson = nlohmann::ordered_json;

constexpr const char *kSettings = "lockstep.settings", *kImage = "lockstep.image",
                     *kClasses = "lockstep.classes";
constexpr std::int64_t kMostSide = 1 << 16, kMostNamedClasses = 1 << 20;

// These keys affect training, not what the network computes.
constexpr const char* kOfTraining[] = {"model.freeze", "model.reset_head"};

// Accepts of data.* only the keys that transform an image before the network. Paths are private.
bool is_of_the_network(std::string_view key) {
  constexpr std::array kOfData = {"data.resize", "data.center_crop", "data.exif_orientation", "data.mean",
                                  "data.deviation"};
  if (std::ranges::find(kOfTraining, key) != std::end(kOfTraining)) return false;
  return key.starts_with("model.") || std::ranges::find(kOfData, key) != kOfData.end();
}

DType image_type(const std::string& name) {
  for (const DType type : {DType::u8, DType::f32})
    if (name == name_of(type)) return type;
  throw DataError(fmt::format("unknown image type {}", name));
}

ExportFacts facts_in(const std::map<std::string, std::string>& metadata) {
  ExportFacts facts;
  facts.settings = FactsJson::parse(metadata.at(kSettings)).get<std::vector<std::string>>();
  facts.classes = FactsJson::parse(metadata.at(kClasses)).get<std::vector<std::string>>();
  const FactsJson image = FactsJson::parse(metadata.at(kImage));
  facts.image = {.height = image.at("height"),
                 .width = image.at("width"),
                 .channels = image.at("channels"),
                 .type = image_type(image.at("type"))};
  facts.masks = image.value("masks", false);
  facts.mean = image.at("mean").get<std::vector<double>>();
  facts.deviation = image.at("deviation").get<std::vector<double>>();
  for (const std::int64_t side : {facts.image.height, facts.image.width, facts.image.channels})
    if (side < 1 || side > kMostSide) throw DataError(fmt::format("invalid image side {}", side));
  if (facts.classes.empty() || std::ssize(facts.classes) > kMostNamedClasses)
    throw DataError(fmt::format("invalid number of classes {}", facts.classes.size()));
  for (const std::string& setting : facts.settings)
    if (!is_of_the_network(setting.substr(0, setting.find('='))))
      throw DataError(fmt::format("{} is not a setting of a network", setting));
  return facts;
}

}  // namespace

ExportFacts export_facts(const Config& config, const Dataset& images, const Registry& registry) {
  ExportFacts facts{.image = images.image_shape(),
                    .masks = images.has_masks(),
                    .mean = config.network.mean,
                    .deviation = config.network.deviation,
                    .classes = images.class_names()};
  for (const KeyDifference& each : differences(to_toml(config, registry), ""))
    if (is_of_the_network(each.key)) facts.settings.push_back(each.key + "=" + each.value);
  for (std::string& name : facts.classes) name = valid_utf8(name);  // as to_metadata() writes it
  for (std::int64_t label = std::ssize(facts.classes); label < images.classes(); ++label)
    facts.classes.push_back(std::to_string(label));
  return facts;
}

std::map<std::string, std::string> to_metadata(const ExportFacts& facts) {
  return {{"format", "pt"},
          {kSettings, dumped(FactsJson(facts.settings))},
          {kClasses, dumped(FactsJson(facts.classes))},
          {kImage, dumped(FactsJson{{"height", facts.image.height},
                                    {"width", facts.image.width},
                                    {"channels", facts.image.channels},
                                    {"type", name_of(facts.image.type)},
                                    {"mean", facts.mean},
                                    {"deviation", facts.deviation},
                                    {"masks", facts.masks}})}};
}

std::optional<ExportFacts> read_export_facts(const std::filesystem::path& path) {
  const SafetensorsReader file(path);
  if (!file.metadata().contains(kSettings)) return std::nullopt;
  try {
    return facts_in(file.metadata());
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: invalid metadata of the network: {}", path.string(), error.what()));
  }
}

}  // namespace lockstep
