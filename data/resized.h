// SPDX-License-Identifier: Apache-2.0
//
// Images of any size, all made the same size as they are read, with torchvision's meaning: Resize and
// CenterCrop, and RandomResizedCrop for training. What the random crop takes depends on the seed, the epoch
// and the sample alone.
#pragma once

#include <memory>

#include "data/dataset.h"
#include "data/resample.h"

namespace lockstep {

// RandomResizedCrop of an image of that size: a part of 8 % to 100 % of its area, at most a third wider than
// high or higher than wide (Szegedy et al., "Going deeper with convolutions", 2015). In whole pixels.
ImageBox random_box(const ImageShape& image, const Draw& draw, std::int64_t index);

// What Resize(round(size / share)), of the shorter side, and CenterCrop(size) take of an image of that size.
ImageBox center_box(const ImageShape& image, const ResizeOptions& options);

// Of a dataset that reads images of any size (Dataset::read_own_size).
std::unique_ptr<Dataset> resized(std::unique_ptr<Dataset> dataset, const ResizeOptions& options);

}  // namespace lockstep
