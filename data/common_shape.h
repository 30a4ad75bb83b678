// SPDX-License-Identifier: Apache-2.0
//
// The common size and number of channels of a dataset, from the headers of some of its images. Used by the
// formats whose images are files.
#pragma once

#include <cstdint>
#include <functional>

#include "data/dataset.h"

namespace lockstep {

// How many images are looked at, at most.
inline constexpr std::int64_t kImagesLookedAt = 256;

// shape_of: of the i-th of `count` training images, spread over all; throws DataError or IoError for one that
// cannot be read, which is then not counted. Returns the size of the first that can be, with as many channels
// as options.images says or, where it says nothing, as most of them have: 1 or 3. Of the training split a
// line says what is mixed and which key decides: a warning where channels are, for colour may be lost; how
// many are turned as their EXIF says; and a warning of how many are animated. Throws what shape_of threw for
// the first one where none can be read, and ConfigError for channels that are neither.
ImageShape common_shape(const DatasetOptions& options, Split split, std::int64_t count,
                        const std::function<ImageShape(std::int64_t index)>& shape_of);

}  // namespace lockstep
