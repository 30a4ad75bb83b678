// SPDX-License-Identifier: Apache-2.0
//
// Datasets of JPEG and PNG files, one folder for each class (data/image_names.h says which files). Only their
// names are held in memory; each image is read and decoded by the thread that asks for it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

enum class SizesOfImages {
  same,  // of all images
  any,   // they are read by read_own_size(); the shape is then only the first one's
};

// The shape is that of the first image of train/, 1 channel where that one is grayscale and 3 (RGB)
// otherwise; all others are converted to as many channels.
//
// An image that is decoded with a warning (data/jpeg_decoder.h) is counted by damaged(), and logged.
//
// Throws what ImageNames does, and DataError where the first image of train/ is broken. read() throws
// DataError for an image that cannot be decoded or has another size, IoError for a file that cannot be read;
// probe() reads the file's header only.
std::unique_ptr<Dataset> open_image_folder(const std::filesystem::path& folder, Split split,
                                           SizesOfImages sizes = SizesOfImages::same);

// The files of these paths, whose classes nobody knows: read() returns 0. Of any size, to be resized; they
// are converted to the shape's channels.
std::unique_ptr<Dataset> open_image_list(std::vector<std::string> paths, const ImageShape& shape,
                                         std::vector<std::string> classes);

}  // namespace lockstep
