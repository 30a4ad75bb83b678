// SPDX-License-Identifier: Apache-2.0
//
// The index of a file of images, stored beside it so that later starts need not read the whole file.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/containers/stored_images.h"
#include "data/formats/readable_file.h"

namespace lockstep {

// asked: a checksum of the options that select images and labels. Returns none if the index is missing,
// damaged, of another state of the file, or of other options.
std::optional<std::vector<StoredImage>> read_index(const ReadableFile& file, std::uint32_t asked);
// If the index cannot be written, only logs that.
void write_index(const ReadableFile& file, std::uint32_t asked, const std::vector<StoredImage>& images);

}  // namespace lockstep
