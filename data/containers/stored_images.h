// SPDX-License-Identifier: Apache-2.0
//
// StoredImages: JPEG and PNG images inside larger files, located by an index. The common part of container
// formats; each format adds an indexer (tfrecord.h, webdataset.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "data/containers/split_files.h"
#include "data/dataset.h"

namespace lockstep {

// Where an image lies in its file.
struct StoredImage {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32C of the bytes, if has_crc is 1
  std::int32_t label = 0;
  std::uint32_t has_crc = 0;
};
static_assert(sizeof(StoredImage) == 24);

// A container format: how to find its files, and how to index one, which belongs to the split `of`.
struct ContainerFormat {
  SplitNames names;
  std::function<std::vector<StoredImage>(const std::filesystem::path& file, Split of)> index;
};

// Unpacks gzip files (data/containers/unpacked_file.h). Warns of files without samples. The shape is that of
// the first training image, with the channels of most (data/images/common_shape.h); classes() is the largest
// training label plus 1. Throws what finding and indexing files throws, and DataError if there is no image,
// no examined image can be read, or a label is negative, 2^20 or more, or above the largest training label.
// read() throws DataError, with file and offset, for an image that cannot be decoded, has changed since
// indexing, or has another size.
std::unique_ptr<Dataset> open_container(const DatasetOptions& options, Split split,
                                        const ContainerFormat& format);

}  // namespace lockstep
