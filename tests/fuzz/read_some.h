// SPDX-License-Identifier: Apache-2.0
//
// What every dataset promises, whatever its files hold.
#pragma once

#include <algorithm>
#include <vector>

#include "data/dataset.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

inline void read_some(const Dataset& dataset) {
  require(dataset.size() >= 1, "there is an image");
  require(dataset.image_shape().bytes() >= 1, "images have pixels");
  dataset.fingerprint();
  dataset.class_counts();
  dataset.class_names();
  // What is larger takes its time and tells no more.
  if (dataset.image_shape().bytes() > 1 << 20) return;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  for (std::int64_t i = 0; i < std::min<std::int64_t>(dataset.size(), 8); ++i) {
    const std::int32_t label = dataset.read(i, image);
    require(label >= 0 && label < dataset.classes(), "labels are classes");
  }
}

}  // namespace lockstep::fuzz
