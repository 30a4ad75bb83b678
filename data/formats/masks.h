// SPDX-License-Identifier: Apache-2.0
//
// Images with masks: JPEG or PNG files in train/images/ and test/images/, and a PNG file of the same name in
// train/masks/ and test/masks/, whose values are the classes of the pixels.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Without a folder train/, images/ and masks/ lie in the dataset's folder itself, and
// options.validation_share splits them. Of several test splits, the first with masks/ is used and logged. The
// classes are options.masks.classes; pixels of the value options.masks.ignore_index are read as
// kIgnoredPixel. A mask is turned as the EXIF data of its file says (options.images). Opening the training
// split warns if palettes give one value different colours.
//
// Throws ConfigError without options.masks.classes and for numbers that 8 bits cannot hold, IoError for a
// missing folder, and DataError for an image without a mask. read() and read_mask() throw DataError for a
// file that cannot be decoded, for a mask of another size than its image, and for a value that is neither a
// class nor ignored.
std::unique_ptr<Dataset> open_masks(const DatasetOptions& options, Split split);

}  // namespace lockstep
