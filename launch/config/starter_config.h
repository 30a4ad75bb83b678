// SPDX-License-Identifier: Apache-2.0
//
// A first configuration for a folder of one's own images: what `lockstep init` writes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Of the training images, as far as a starter configuration depends on them.
struct ImageSummary {
  std::int64_t images = 0;
  std::int64_t classes = 0;
  ImageShape shape;
  bool resized = false;  // to that shape, since they differ in size
  // Of each channel of a sample of the images, pixels in [0, 1].
  std::vector<double> mean;
  std::vector<double> deviation;
};

// To which size images are best made that differ in it, by the headers of at most 1000 of them: one that
// networks are used to, and that half of the images have. 0: they are all of one size.
std::int64_t size_for(const Dataset& dataset);

// Reads at most 1000 images, chosen at random and the same each time. Throws what the dataset throws:
// DataError for an image that is broken or of another size.
ImageSummary summarize(const Dataset& dataset);

// TOML, with comments, for training on the images in `folder` ("image_folder"): a small network for small
// images, a batch that the images fill several times, epochs enough for some thousand steps, augmentation for
// colour images. The learning rate is left to the defaults.
std::string starter_config(const ImageSummary& summary, const std::filesystem::path& folder,
                           const std::string& run_name);

}  // namespace lockstep
