// SPDX-License-Identifier: Apache-2.0
//
// The common size and number of channels of a dataset, from the headers of some of its images. Used by
// formats whose images are files.
#pragma once

#include <cstdint>
#include <functional>

#include "data/dataset.h"

namespace lockstep {

// Most images whose headers are read.
inline constexpr std::int64_t kImagesLookedAt = 256;

// options.images.channels, or `most` if that is 0. Throws ConfigError for 2 channels.
std::int64_t channels_of(const DatasetOptions& options, std::int64_t most);

// shape_of(i) returns the shape of the i-th of `count` training images, spread over the dataset, and throws
// DataError or IoError for one that cannot be read, which is not counted. Returns the size of the first
// readable image, with options.images.channels channels, or, if that is 0, with what most images have: 1 or
// 3. For the training split it logs mixed channels (a warning: colour may be lost), images turned as their
// EXIF says, and animated images (a warning), with the key that decides. Throws shape_of's first exception if
// no image can be read, and ConfigError for 2 channels.
ImageShape common_shape(const DatasetOptions& options, Split split, std::int64_t count,
                        const std::function<ImageShape(std::int64_t index)>& shape_of);

}  // namespace lockstep
