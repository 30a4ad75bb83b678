// SPDX-License-Identifier: Apache-2.0
//
// Checks that hold for every dataset, whatever its files contain.
#pragma once

#include <algorithm>
#include <vector>

#include "data/dataset.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

inline void read_some(const Dataset& dataset) {
  require(dataset.size() >= 1, "a dataset must have at least one image");
  require(dataset.image_shape().bytes() >= 1, "images must have pixels");
  dataset.fingerprint();
  dataset.class_counts();
  dataset.class_names();
  // Larger images take long and show nothing new.
  if (dataset.image_shape().bytes() > 1 << 20) return;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  for (std::int64_t i = 0; i < std::min<std::int64_t>(dataset.size(), 8); ++i) {
    const std::int32_t label = dataset.read(i, image);
    require(label >= 0 && label < dataset.classes(), "a label must be one of the classes");
  }
}

}  // namespace lockstep::fuzz
