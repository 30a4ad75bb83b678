// SPDX-License-Identifier: Apache-2.0
//
// Datasets of JPEG and PNG files, one folder for each class (data/image_names.h says which files). Only their
// names are held in memory; each image is read and decoded by the thread that asks for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// The shape is that of the first image of train/ that can be read, but for its channels: options.images says
// them, or, from the headers of some training images (data/common_shape.h), what most have. All images are
// converted to as many. Where options.resize makes all images one size, they are read by read_own_size().
//
// An image that is decoded with a warning (data/jpeg_decoder.h) is counted by damaged(), and logged.
//
// Throws what ImageNames does, and DataError where none of the training images that are looked at can be
// read. read() throws DataError for an image that cannot be decoded or has another size, IoError for a file
// that cannot be read; probe() reads the file's header only.
std::unique_ptr<Dataset> open_image_folder(const DatasetOptions& options, Split split);

// The files of these paths, whose classes nobody knows: read_own_size() returns 0, and throws DataError for a
// file that cannot be read, too. Of any size, to be resized; they are converted to the shape's channels.
std::unique_ptr<Dataset> open_image_list(std::vector<std::string> paths, const ImageShape& shape,
                                         ExifOrientation exif, std::vector<std::string> classes);

}  // namespace lockstep
