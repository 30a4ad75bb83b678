// SPDX-License-Identifier: Apache-2.0
//
// Record files as a dataset: a folder with train-00000-of-00002.lsr and so on, and test-... or val-..., as
// `lockstep pack` writes it (data/records/pack.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

inline constexpr const char* kRecordSuffix = ".lsr";
// "train-00000-of-00002.lsr"
std::string shard_name(const std::string& split, std::int64_t shard, std::int64_t shards);

// The files of a split in order, at least one. Throws IoError if there are none.
std::vector<std::filesystem::path> record_files(const DatasetOptions& options, Split split);

// Opens all shards of a split. options.images applies to image files, not to pixels. If options.test_split is
// "auto" and there are files of several test splits, it logs which are used. Throws IoError for a missing
// folder or file; DataError for a file that RecordFile refuses, for shards of different sets, and for missing
// shards; ConfigError for images of different sizes without options.resize, and for options.validation_share
// above 0 if the folder has test files. read() checks an image's checksum at its first read and throws
// DataError, with file, record and offset, if it is wrong.
std::unique_ptr<Dataset> open_records(const DatasetOptions& options, Split split);

}  // namespace lockstep
