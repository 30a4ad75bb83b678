// SPDX-License-Identifier: Apache-2.0
//
// Record files as a dataset: a folder with train-00000-of-00002.lsr and so on, and test-... or val-... beside
// them, as `lockstep pack` writes it (data/records/pack.h).
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

// Of a split, in order; one or more. Throws IoError.
std::vector<std::filesystem::path> record_files(const DatasetOptions& options, Split split);

// All shards of a split, in order. Throws IoError for a missing folder or file; DataError for what RecordFile
// refuses, for shards of different sets, and for shards that are not there. read() throws DataError, with
// file, record and offset, for an image whose checksum is wrong: it is looked at when it is first read.
// Images with sizes of their own are refused (ConfigError) unless options.resize makes them one size.
std::unique_ptr<Dataset> open_records(const DatasetOptions& options, Split split);

}  // namespace lockstep
