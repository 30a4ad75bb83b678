// SPDX-License-Identifier: Apache-2.0
//
// A first configuration for a folder of the user's images, written by `lockstep init`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Properties of the training images that a starter configuration depends on.
struct ImageSummary {
  std::int64_t images = 0;
  std::int64_t classes = 0;
  ImageShape shape;
  bool resized = false;         // to that shape, as the images differ in size
  double validation_share = 0;  // of the training images, if there are no test images
  // By channel, over a sample of the images, with pixels in [0, 1].
  std::vector<double> mean;
  std::vector<double> deviation;
};

// The size to which images of different sizes should be resized, from the headers of at most 1000 of them:
// the largest common network input size that half of the images reach, at least 32. 0: all have one size.
std::int64_t size_for(const Dataset& dataset);

// Reads at most 1000 images, a fixed random choice. Leaves out those that cannot be decoded, as training does
// by default, with warnings. Throws DataError if none can be decoded, and IoError for one that cannot be
// read.
ImageSummary summarize(const Dataset& dataset);

// TOML, with comments, for training on the images in `folder` ("image_folder"): a small network for small
// images, a batch that fits several times into the images, epochs for some thousand steps, augmentation for
// colour images. The learning rate keeps its default.
std::string starter_config(const ImageSummary& summary, const std::filesystem::path& folder,
                           const std::string& run_name);

}  // namespace lockstep
