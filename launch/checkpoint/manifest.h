// SPDX-License-Identifier: Apache-2.0
//
// Manifest: what a checkpoint is of, and which files it has: the file manifest.json of its folder. A
// checkpoint is whole exactly if its manifest is, and every file has the size and the hash that stands there.
//
// Manifests may come from anywhere. Nothing in one is ever a path: the files of a checkpoint have the names
// that this page gives them, and a manifest that lists others is refused.
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
  bool operator==(const ShardFile&) const = default;
};

struct Manifest {
  static constexpr const char* kFileName = "manifest.json";
  static constexpr std::int64_t kVersion = 1;
  static constexpr std::int64_t kMostRanks = 1 << 20;

  std::string lockstep;       // the version that wrote it
  std::int64_t steps = 0;     // that were done
  std::int64_t epochs = 0;    // that were done, and whose lines metrics.jsonl had
  bool partial_line = false;  // and one more line, of the epoch that train.steps had cut short
  std::int64_t ranks = 1;
  std::int64_t global_batch = 1;        // samples of a step
  std::string device;                   // "cpu" or "cuda"
  std::string data;                     // see describe_data()
  std::string kernels;                  // see KernelChoices' to_text()
  std::string config;                   // as to_toml() writes it
  std::optional<double> test_accuracy;  // of this very state, where it was evaluated
  std::vector<ShardFile> files;         // shared_shard(), then rank_shard() of each rank

  bool operator==(const Manifest&) const = default;
};

// What all ranks share; what one of them has for itself.
std::string shared_shard();
std::string rank_shard(std::int64_t rank);

// One text for one manifest.
std::string to_text(const Manifest& manifest);
// Throws DataError, naming `path` and what is wrong, for anything but what to_text() wrote, to the byte.
Manifest manifest_from(std::string_view text, const std::filesystem::path& path);
// Of a checkpoint's folder; no symbolic link is followed. Throws DataError, also where there is none, and
// IoError.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace lockstep
