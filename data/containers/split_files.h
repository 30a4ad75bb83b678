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
// Of files that gzip had packed (data/containers/unpacked_file.h).
inline constexpr std::string_view kUnpackedSuffix = ".lsunpacked";

// The files of a split, sorted by name: those in whose name `mark` is (".tar") or, where it may be missing,
// that end as shards do ("train-00003-of-01024"), and in whose name up to there is a word of that split, as a
// whole word (data/split_words.h): "train" for training; for the other split what options.test_split says.
// Where that is "auto" and there are files of test and of val, a line says which are taken. Throws IoError
// for a missing folder and where there is none; `expected` says what the message tells people to have. Throws
// DataError for a file whose name has words of training and of another split: its samples would be in both.
struct SplitNames {
  std::string_view mark;
  bool shard_suffices = false;
  std::string_view expected;
};
std::vector<std::filesystem::path> split_files(const DatasetOptions& options, Split split,
                                               const SplitNames& names);

}  // namespace lockstep
