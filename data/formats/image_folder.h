// SPDX-License-Identifier: Apache-2.0
//
// Datasets of JPEG and PNG files, one folder per class (data/formats/image_names.h says which files). Only
// the file names are held in memory; each image is read and decoded by the calling thread.
#pragma once

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

// Unlabelled image files of any size, to be resized. read_own_size() returns label 0, converts images to the
// shape's channels, and throws DataError also for a file that cannot be read. With masks, all pixels of their
// masks are ignored.
enum class ListLabels { of_images, of_pixels };
std::unique_ptr<Dataset> open_image_list(std::vector<std::string> paths, const ImageShape& shape,
                                         ExifOrientation exif, std::vector<std::string> classes,
                                         ListLabels labels = ListLabels::of_images);

}  // namespace lockstep
