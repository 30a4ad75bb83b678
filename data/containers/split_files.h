// SPDX-License-Identifier: Apache-2.0
//
// Finds the files of a split in a folder by their names.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Suffix of index files (data/containers/image_index.h).
inline constexpr std::string_view kIndexSuffix = ".lsindex";
// Suffix of files unpacked from gzip (data/containers/unpacked_file.h).
inline constexpr std::string_view kUnpackedSuffix = ".lsunpacked";

// Returns the files of a split, sorted by name. Their names contain `mark` (".tar") or, with shard_suffices,
// end like shards ("train-00003-of-01024"), and contain a word of the split before the mark, as a whole word
// (data/formats/split_words.h): "train" for training; for the test split see options.test_split. If that is
// "auto" and there are files of test and of val, it logs which are used. Skips hidden files, copies,
// unfinished downloads, files about other files ("train.csv~", "train.tar.bak", "train.tfrecord.idx") and
// gzip files beside their unpacked file ("train.tar.gz" beside "train.tar"). Warns if fewer shards exist than
// their names count.
//
// Throws IoError for a missing folder and if no file is found; `expected` describes the expected files in the
// message. Throws DataError for a file whose name has words of training and of another split: its samples
// would be in both.
struct SplitNames {
  std::string_view mark;
  bool shard_suffices = false;
  std::string_view expected;
  // A line names five skipped files of all splits and counts the others. False for training files also
  // disables the warning about missing shards.
  bool log_skipped = false;
};
std::vector<std::filesystem::path> split_files(const DatasetOptions& options, Split split,
                                               const SplitNames& names);

}  // namespace lockstep
