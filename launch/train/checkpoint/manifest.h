// SPDX-License-Identifier: Apache-2.0
//
// Manifest: which training a checkpoint belongs to, and which files it has, in manifest.json of its folder. A
// checkpoint is complete if and only if its manifest is valid and every file has the size and the hash that
// the manifest lists.
//
// Manifests are untrusted. No entry is used as a path: the files of a checkpoint have the names that this
// header defines, and a manifest with other names is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct ShardFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string xxh3;  // of the whole file: see ContentHash
};

struct Manifest {
  static constexpr const char* kFileName = "manifest.json";
  static constexpr std::int64_t kVersion = 1;
  static constexpr std::int64_t kMostRanks = 1 << 20;

  std::string lockstep;       // the version that wrote it
  std::int64_t steps = 0;     // done so far
  std::int64_t epochs = 0;    // done so far, with a line in metrics.jsonl each
  bool partial_line = false;  // and one more line, of an epoch that train.steps cut short
  std::int64_t ranks = 1;
  std::int64_t global_batch = 1;        // samples of a step
  std::string device;                   // "cpu" or "cuda"
  std::string data;                     // see describe_data()
  std::string kernels;                  // see KernelChoices' to_text()
  std::string config;                   // as to_toml() writes it
  std::optional<double> test_accuracy;  // of exactly this state, if it was evaluated
  std::vector<ShardFile> files;         // shared_shard(), then rank_shard() of each rank
};

// Names of the file with shared state, and of the file with one rank's state.
std::string shared_shard();
std::string rank_shard(std::int64_t rank);

// Equal manifests give equal texts.
std::string to_text(const Manifest& manifest);
// Throws DataError, with `path` and the reason, unless the text is byte for byte an output of to_text().
Manifest manifest_from(std::string_view text, const std::filesystem::path& path);
// Reads the manifest in a checkpoint's folder without following symbolic links. Throws DataError, also if
// there is no manifest, and IoError.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace lockstep
