// SPDX-License-Identifier: Apache-2.0
//
// Synthetic images of any shape and number, computed on demand: for measurements without files and without
// memory for them. Labels can be learned: each class has its own pattern, and half of each pixel is noise.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Sample i has label i % classes. Each pixel is the mean of the class's pattern (4x4 cells of random
// brightness per channel) and of the sample's uniform noise, which differs between the splits. The same on
// every machine. Throws ConfigError for a split with fewer samples than classes, and for images of more than
// 2^30 bytes.
std::unique_ptr<Dataset> open_synthetic(const SyntheticOptions& options, Split split);

}  // namespace lockstep
