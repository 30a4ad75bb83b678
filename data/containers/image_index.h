// SPDX-License-Identifier: Apache-2.0
//
// What is known of a file of images, kept beside it so that it need not be read again.
#pragma once

#include <optional>
#include <vector>

#include "data/containers/stored_images.h"
#include "data/readable_file.h"

namespace lockstep {

// Nothing where there is none, or not one of the file as it is now, or a damaged one.
std::optional<std::vector<StoredImage>> read_index(const ReadableFile& file);
// Where it cannot be written, a log line says so, and that is all.
void write_index(const ReadableFile& file, const std::vector<StoredImage>& images);

}  // namespace lockstep
