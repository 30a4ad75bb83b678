// SPDX-License-Identifier: Apache-2.0
//
// Datasets of JPEG and PNG files, one folder per class (data/formats/image_names.h says which files). Only
// the file names are held in memory; each image is read and decoded by the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// The shape is that of the first readable image of train/. Its channels are options.images.channels or, if
// that is 0, what most of some training images have (data/images/common_shape.h); all images are converted to
// them. With options.resize, images are read by read_own_size().
//
// An image that is decoded with a warning (data/images/jpeg_decoder.h) is counted by damaged() and logged.
//
// Throws what ImageNames throws, and DataError or IoError if none of the examined training images can be
// read. read() throws DataError for an image that cannot be decoded or has another size, IoError for a file
// that cannot be read; probe() reads only the file's header.
std::unique_ptr<Dataset> open_image_folder(const DatasetOptions& options, Split split);

struct ImageListOptions {
  ExifOrientation exif = ExifOrientation::apply;
  std::vector<std::string> classes = {};
  bool any_size = true;  // images are resized; false: images of another size than `shape` are damaged
  bool unreadable_is_damaged = false;  // reading throws DataError for a file that cannot be read
  bool labels_of_pixels = false;       // the list has masks, whose pixels are all ignored
};

// Unlabelled image files. read() and read_own_size() return label 0 and convert images to the shape's
// channels.
std::unique_ptr<Dataset> open_image_list(std::vector<std::string> paths, const ImageShape& shape,
                                         ImageListOptions options);

// Hashes the file's size and its first 64 KiB. An unreadable file counts as empty; read() reports it.
std::uint64_t hash_of_file(const std::string& path, std::uint64_t seed);

}  // namespace lockstep
