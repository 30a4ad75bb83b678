// SPDX-License-Identifier: Apache-2.0
//
// Images that are computed when they are asked for, of any shape and number: to measure without files, and
// without memory. Labels can be learned: each class has a pattern of its own, and half of each pixel is
// noise.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Sample i has label i % classes. Its pixels are the means of the class's pattern, 4x4 cells of random
// brightness for each channel, and of uniform noise of its own, which differs between the splits. The same
// on every machine. Throws ConfigError for a split with fewer samples than classes, and for images of more
// than 2^30 bytes.
std::unique_ptr<Dataset> open_synthetic(const SyntheticOptions& options, Split split);

}  // namespace lockstep
