// SPDX-License-Identifier: Apache-2.0
//
// Finds the files of a split in a folder by their names.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"

namespace lockstep {

// Suffix of index files (data/containers/image_index.h).
inline constexpr std::string_view kIndexSuffix = ".lsindex";
// Suffix of files unpacked from gzip (data/containers/unpacked_file.h).
inline constexpr std::string_view kUnpackedSuffix = ".lsunpacked";

// Samples have no labels. For the test split open_dataset() adds the settings that help to the message.
struct UnlabelledError : DataError {
  using DataError::DataError;
};

// Returns true if the samples of these files have no labels.
using LacksLabels = std::function<bool(const std::vector<std::filesystem::path>& files)>;

// Returns the files of a split, sorted by name. Their names contain `mark` (".tar", in any case) or, with
// shard_suffices, end like shards ("train-00003-of-01024"), and contain a word of the split before the mark,
// as a whole word (data/formats/split_words.h): "train" for training; for the test split see
// options.test_split. If that is "auto" and there are files of test and of val, it logs which are used: those
// of val if only those of test lack labels. `endings`, unless empty, lists the allowed ends of names, in
// any case. Skips hidden files, copies, unfinished downloads, files about other files ("train.csv~",
// "train.tar.bak", "train.tfrecord.idx"), second downloads beside the first ("train (1).csv" beside
// "train.csv") and gzip files beside their unpacked file ("train.tar.gz" beside "train.tar"). Warns if fewer
// shards exist than their names count, and if two sets of shards differ only in that number. For training
// files a line names five skipped files of all splits and counts the others. A dataset that also looks up the
// files of the other split does so under log::Quiet.
//
// Throws IoError for a missing folder and if no file is found; `expected` describes the expected files in the
// message. Throws DataError for a file whose name has words of training and of another split: its samples
// would be in both.
struct SplitNames {
  std::string_view mark;  // in lower case, like `endings`
  bool shard_suffices = false;
  std::string_view expected;
  std::span<const std::string_view> endings = {};
};
std::vector<std::filesystem::path> split_files(const DatasetOptions& options, Split split,
                                               const SplitNames& names, const LacksLabels& lacks_labels = {});

// The end of a log line: names the files that unpacked_file() made of earlier states of `packed`, beside the
// copy `current`. Empty if there are none. They are not removed: another process may read them, and on NFS
// the system does not keep a removed file for readers on other nodes.
std::string earlier_copies(const std::filesystem::path& packed, const std::filesystem::path& current);

// Logs which of two test splits is used, and that data.test_split sets this. lacking: what the preferred
// split `other` lacks, such as "labels"; the line is then a warning. Empty: `used` is the preferred split.
void log_test_split(const std::string& path, const std::string& used, const std::string& other,
                    std::string_view lacking = "");

}  // namespace lockstep
