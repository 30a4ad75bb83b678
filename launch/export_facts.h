// SPDX-License-Identifier: Apache-2.0
//
// ExportFacts: what an exported network says of itself in its file's metadata, so that who uses it needs
// nothing else: which network it is, what images it takes, and what its classes are called.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "launch/config/config.h"

namespace lockstep {

struct ExportFacts {
  // "model.name=\"cnn\"": keys of the configuration that say what the network computes, and of what.
  std::vector<std::string> settings;
  ImageShape image;  // of its input
  // Per channel, of pixels in [0, 1]: (pixel - mean) / deviation is what it sees; empty: the pixel.
  std::vector<double> mean, deviation;
  std::vector<std::string> classes;  // their names; "0", "1", .. where they have none
};

ExportFacts export_facts(const Config& config, const Dataset& images, const Registry& registry);

// "format" ("pt": names and layouts are PyTorch's), "lockstep.settings", "lockstep.classes" (arrays of JSON)
// and "lockstep.image" (an object: height, width, channels, type, mean, deviation).
std::map<std::string, std::string> to_metadata(const ExportFacts& facts);

// Of a safetensors file; nothing where another program wrote it. Throws IoError, and DataError for a file, or
// facts, that make no sense.
std::optional<ExportFacts> read_export_facts(const std::filesystem::path& path);

}  // namespace lockstep
