// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/printable.h"
#include "core/text/json_text.h"
#include "core/text/text.h"
#include "launch/train/checkpoint/plain_file.h"
#include "launch/train/watch/content_hash.h"
#include "launch/train/whole_number.h"

namespace lockstep {
namespace {

using ManifestJson = nlohmann::ordered_json;

constexpr const char* kManifestFormat = "lockstep checkpoint";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{256} << 20;  // enough for a million ranks
constexpr std::int64_t kMostShardBytes = std::int64_t{1} << 62;
constexpr std::int64_t kMostSavedSteps = std::int64_t{1} << 52;

ManifestJson manifest_json(const Manifest& manifest) {
  ManifestJson files = ManifestJson::array();
  for (const ShardFile& file : manifest.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  return {{"format", kManifestFormat},
          {"version", Manifest::kVersion},
          {"lockstep", manifest.lockstep},
          {"steps", manifest.steps},
          {"epochs", manifest.epochs},
          {"partial_line", manifest.partial_line},
          {"ranks", manifest.ranks},
          {"global_batch", manifest.global_batch},
          {"device", manifest.device},
          {"data", manifest.data},
          {"config_xxh3", hash_of(dumped(ManifestJson(manifest.config)))},
          {"config", manifest.config},
          {"kernels", manifest.kernels},
          {"test_accuracy", manifest.test_accuracy ? ManifestJson(*manifest.test_accuracy) : ManifestJson()},
          {"files", files}};
}

// One line without control characters, which a terminal could interpret.
std::string line_in(const ManifestJson& json, const char* name) {
  std::string text = json.at(name).get<std::string>();
  if (has_control_characters(text)) throw DataError(fmt::format("\"{}\" has control characters", name));
  return text;
}

void check_files(const Manifest& manifest) {
  if (static_cast<std::int64_t>(manifest.files.size()) != manifest.ranks + 1)
    throw DataError(fmt::format("it lists {} files for {}, expected {} files", manifest.files.size(),
                                counted(manifest.ranks, "rank"), manifest.ranks + 1));
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string name = i == 0 ? shared_shard() : rank_shard(static_cast<std::int64_t>(i) - 1);
    if (manifest.files[i].name != name)
      throw DataError(fmt::format("file {} is \"{}\", expected \"{}\"", i, manifest.files[i].name, name));
  }
}

Manifest manifest_of(const ManifestJson& json) {
  if (json.at("format") != kManifestFormat)
    throw DataError(fmt::format("\"format\" is not \"{}\"", kManifestFormat));
  if (json.at("version") != Manifest::kVersion)
    throw DataError(fmt::format("it has version {}, this program reads version {}", json.at("version").dump(),
                                Manifest::kVersion));
  Manifest manifest{.lockstep = line_in(json, "lockstep"),
                    .steps = whole_number(json, "steps", 0, kMostSavedSteps),
                    .epochs = whole_number(json, "epochs", 0, kMostSavedSteps),
                    .partial_line = json.at("partial_line"),
                    .ranks = whole_number(json, "ranks", 1, Manifest::kMostRanks),
                    .global_batch = whole_number(json, "global_batch", 1, kMostSavedSteps),
                    .device = line_in(json, "device"),
                    .data = line_in(json, "data"),
                    .kernels = line_in(json, "kernels"),
                    .config = json.at("config"),
                    .test_accuracy = {},
                    .files = {}};
  if (!json.at("test_accuracy").is_null()) manifest.test_accuracy = json.at("test_accuracy").get<double>();
  for (const ManifestJson& file : json.at("files"))
    manifest.files.push_back({line_in(file, "name"),
                              static_cast<std::uint64_t>(whole_number(file, "bytes", 0, kMostShardBytes)),
                              line_in(file, "xxh3")});
  check_files(manifest);
  return manifest;
}

}  // namespace

std::string shared_shard() { return "shared.safetensors"; }
std::string rank_shard(std::int64_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// Indented, for people. The last key is the hash of all other keys.
std::string to_text(const Manifest& manifest) {
  ManifestJson json = manifest_json(manifest);
  json["xxh3"] = hash_of(dumped(json));
  return dumped(json, 1) + "\n";
}

Manifest manifest_from(std::string_view text, const std::filesystem::path& path) {
  try {
    // Refuses nesting deeper than a manifest's during parsing.
    const Manifest manifest = manifest_of(ManifestJson::parse(text.begin(), text.end(), depth_limit(3)));
    if (to_text(manifest) != text) throw DataError("its contents do not match its hash");
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not a checkpoint's manifest: {}", path.string(), error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: not a checkpoint's manifest: {}", path.string(), error.what()));
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / Manifest::kFileName;
  return manifest_from(read_plain_file(path, kMostManifestBytes), path);
}

}  // namespace lockstep
