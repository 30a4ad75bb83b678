// SPDX-License-Identifier: Apache-2.0
//
// What is known of a file of images, kept beside it so that it need not be read again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/containers/stored_images.h"
#include "data/readable_file.h"

namespace lockstep {

// asked: a checksum of what says which parts of the file are images and labels. Nothing where there is no
// index, or not one of the file as it is now and of what is asked, or a damaged one.
std::optional<std::vector<StoredImage>> read_index(const ReadableFile& file, std::uint32_t asked);
// Where it cannot be written, a log line says so, and that is all.
void write_index(const ReadableFile& file, std::uint32_t asked, const std::vector<StoredImage>& images);

}  // namespace lockstep
