// SPDX-License-Identifier: Apache-2.0
//
// Which files of a folder hold which split, by their names.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Of files that say where in another one images lie, beside it.
inline constexpr std::string_view kIndexSuffix = ".lsindex";

// The files of a split, sorted by name: those in whose name `mark` is (".tar") or, where it may be missing,
// that end as shards do ("train-00003-of-01024"), and in whose name up to there is "train", for training, or,
// for the other split, "test" or, where no file has that, "val". Throws IoError for a missing folder and
// where there is none; `expected` says what the message tells people to have.
struct SplitNames {
  std::string_view mark;
  bool shard_suffices = false;
  std::string_view expected;
};
std::vector<std::filesystem::path> split_files(const std::filesystem::path& folder, Split split,
                                               const SplitNames& names);

}  // namespace lockstep
