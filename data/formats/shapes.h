// SPDX-License-Identifier: Apache-2.0
//
// Computed images with masks, a first example of segmentation: one or two circles, squares and triangles in
// random places, sizes and colours on a dark background, with noise.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// 4,000 training and 500 test images of 64x64x3. The classes are "background", "circle", "square" and
// "triangle"; where shapes overlap, the later one is seen. The same on every machine.
std::unique_ptr<Dataset> open_shapes(Split split);

}  // namespace lockstep
