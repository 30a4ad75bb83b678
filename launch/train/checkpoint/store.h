// SPDX-License-Identifier: Apache-2.0
//
// CheckpointStore: the checkpoints of a run on disk, each a folder run.dir/checkpoints/step-000000040. Only
// rank 0, which holds the run's lock, renames and removes them. A checkpoint is written as
// step-000000040.partial and renamed when all of it is on disk, so a folder with the final name was complete.
// Every rank removes partial ones, because it may see another run.dir, on the disk of its node.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "launch/train/checkpoint/manifest.h"

namespace lockstep {

class CheckpointStore {
 public:
  struct Entry {
    std::filesystem::path folder;
    std::int64_t steps = 0;
    std::int64_t number = 1;  // counts checkpoints of the same step
    auto order() const { return std::pair(steps, number); }
  };

  explicit CheckpointStore(const std::filesystem::path& run_dir) : folder_(run_dir / "checkpoints") {}

  const std::filesystem::path& folder() const { return folder_; }
  // Newest first, found by their names only. Throws IoError if the folder exists and cannot be listed.
  std::vector<Entry> entries() const;
  // Removes the *.partial folders of an earlier job that ended while it wrote or removed checkpoints. Logs
  // errors. Several ranks may call it at once.
  void remove_partials() const;
  // The folder for the files of a new checkpoint. Any rank may call both. make_partial() creates the folder
  // in an existing run.dir; all ranks may call it. Throws IoError.
  std::filesystem::path partial(std::int64_t steps) const;
  void make_partial(std::int64_t steps) const;
  // Adds the manifest to the files, which are on disk, and renames the folder to its final name, which it
  // returns. Throws IoError, also if a file of another rank is missing.
  std::filesystem::path commit(const Manifest& manifest) const;
  void remove_partial(std::int64_t steps) const;
  // Removes complete checkpoints, by their manifests and sizes, except the `keep` newest and the one with the
  // best test accuracy. Incomplete ones stay for inspection. Logs errors.
  void prune(std::int64_t keep) const;
  // Moves checkpoints that come after `but_past_of`, or all if it is empty, to the first free folder
  // checkpoints.N (checkpoints/earlier.N if checkpoints is on another disk than run.dir), which it returns;
  // empty if there was nothing to move. but_past_of: may have another name than those of this class; its
  // manifest then says which come after it. Calls remove_partials() first. Throws IoError, and DataError if
  // that manifest is invalid.
  std::filesystem::path set_aside(const std::filesystem::path& but_past_of) const;

 private:
  std::filesystem::path folder_;
};

// The manifest, if all files exist with their sizes. Throws DataError, IoError.
Manifest whole_manifest(const std::filesystem::path& folder);

}  // namespace lockstep
