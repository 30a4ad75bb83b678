// SPDX-License-Identifier: Apache-2.0
//
// StoredImages: JPEG and PNG images that lie somewhere within larger files, as an index says that was made
// before. What formats of many images in a file share: each is an indexer (tfrecord.h, webdataset.h).
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
  std::uint32_t crc = 0;  // CRC-32C of them, where the index has it
  std::int32_t label = 0;
  std::uint32_t has_crc = 0;
};
static_assert(sizeof(StoredImage) == 24);

// A format of such files.
struct ContainerFormat {
  SplitNames names;  // of its files
  std::function<std::vector<StoredImage>(const std::filesystem::path& file)> index;
};

// Files that gzip has packed are unpacked (data/containers/unpacked_file.h). The shape is that of the first
// image of training, with the channels that most have (data/common_shape.h); training's labels say how many
// classes there are. Throws what finding and indexing files throws, and DataError where there is no image,
// none that is looked at can be read, or a label is negative, 2^20 or more, or one that training has not.
// read() throws DataError, with file and offset, for an image that cannot be decoded, is not what the index
// saw or has another size.
std::unique_ptr<Dataset> open_container(const DatasetOptions& options, Split split,
                                        const ContainerFormat& format);

}  // namespace lockstep
