// SPDX-License-Identifier: Apache-2.0
//
// CheckpointStore: the checkpoints of a run on disk, each a folder run.dir/checkpoints/step-000000040. Rank 0
// alone, which holds the run's lock, makes, renames and removes them. A checkpoint is written as
// step-000000040.partial and takes its name when all of it is on disk, so whatever has the name was whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/checkpoint/manifest.h"

namespace lockstep {

class CheckpointStore {
 public:
  struct Entry {
    std::filesystem::path folder;
    std::int64_t steps = 0;
    std::int64_t number = 1;  // of those after the same step
    auto order() const { return std::pair(steps, number); }
  };

  explicit CheckpointStore(const std::filesystem::path& run_dir) : folder_(run_dir / "checkpoints") {}

  const std::filesystem::path& folder() const { return folder_; }
  // The newest first; by their names alone.
  std::vector<Entry> entries() const;
  // What a job left that ended while it wrote or removed some.
  void remove_partials() const;
  // Where the files of a new checkpoint go. Any rank; the folder is made by make_partial(), which may be
  // called by all, in a run.dir that is there. Throws IoError.
  std::filesystem::path partial(std::int64_t steps) const;
  void make_partial(std::int64_t steps) const;
  // Adds the manifest to the files, which are on disk, and gives the whole its name, which it returns. Throws
  // IoError, also where a file is not there: other ranks write theirs.
  std::filesystem::path commit(std::int64_t steps, const Manifest& manifest) const;
  void remove_partial(std::int64_t steps) const;
  // Removes the older ones but the `keep` newest that are whole as far as manifests and sizes tell, and the
  // one with the best test accuracy. What is not whole is left for people to look at.
  void prune(std::int64_t keep) const;
  // What is not a checkpoint's past, or all where it is empty, moves to the first free folder
  // checkpoints.N, which is returned; empty where there was nothing to move.
  std::filesystem::path set_aside(const std::filesystem::path& but_past_of) const;

 private:
  std::filesystem::path folder_;
};

// The manifest, where all files are there in their sizes. Throws DataError, IoError.
Manifest whole_manifest(const std::filesystem::path& folder);

}  // namespace lockstep
