// SPDX-License-Identifier: Apache-2.0
//
// Resizes images of any size to one size as they are read, with torchvision's semantics: Resize and
// CenterCrop, and RandomResizedCrop for training. The random crop depends only on the seed, the epoch and
// the sample.
#pragma once

#include <memory>

#include "data/dataset.h"
#include "data/images/resample.h"

namespace lockstep {

// The box of a RandomResizedCrop: 8 % to 100 % of the image's area, with a width to height ratio of 3/4 to
// 4/3 (Szegedy et al., "Going deeper with convolutions", 2015), in whole pixels. If ten tries do not fit, the
// largest centered box of such a ratio.
ImageBox random_box(const ImageShape& image, const Draw& draw, std::int64_t index);

// The box that Resize(round(size / share)) of the shorter side, followed by CenterCrop(size), takes.
ImageBox center_box(const ImageShape& image, const ResizeOptions& options);

// Wraps a dataset whose read_own_size() accepts images of any size.
std::unique_ptr<Dataset> resized(std::unique_ptr<Dataset> dataset, const ResizeOptions& options);

}  // namespace lockstep
