// SPDX-License-Identifier: Apache-2.0
//
// ExportFacts: metadata in an exported network's file that makes it self-contained: the network, its input
// images and its class names.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "launch/program/config/config.h"

namespace lockstep {

struct ExportFacts {
  // "model.name=\"cnn\"": the configuration keys that define the network and its input.
  std::vector<std::string> settings;
  ImageShape image;    // shape of the input
  bool masks = false;  // the network has an output for each pixel
  // Per channel; the input is (pixel - mean) / deviation, with pixels in [0, 1]. Empty: the pixel itself.
  std::vector<double> mean, deviation;
  std::vector<std::string> classes;  // names in UTF-8; "0", "1", .. if the dataset has none
};

ExportFacts export_facts(const Config& config, const Dataset& images, const Registry& registry);

// Keys: "format" ("pt": names and layouts are PyTorch's), "lockstep.settings", "lockstep.classes" (JSON
// arrays) and "lockstep.image" (a JSON object: height, width, channels, type, mean, deviation, masks).
std::map<std::string, std::string> to_metadata(const ExportFacts& facts);

// Reads a safetensors file; nullopt if another program wrote it. Throws IoError, and DataError for an invalid
// file or invalid facts.
std::optional<ExportFacts> read_export_facts(const std::filesystem::path& path);

}  // namespace lockstep
