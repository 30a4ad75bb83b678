// SPDX-License-Identifier: Apache-2.0
//
// A dataset that a network learns in a few steps: noisy gray images. The brightness encodes the class.
#pragma once

#include <string>

#include "core/random.h"
#include "data/dataset.h"

namespace lockstep {

class Grays final : public Dataset {
 public:
  explicit Grays(const ImageShape& shape, std::int64_t size = 4096) : shape_(shape), size_(size) {}
  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return 4; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const Random random(1, std::to_string(index));
    for (std::size_t i = 0; i < image.size(); ++i) {
      image[i] = static_cast<std::uint8_t>(60 * (index % 4) + static_cast<std::int64_t>(random.bits(i) % 40));
    }
    return static_cast<std::int32_t>(index % 4);
  }

 private:
  ImageShape shape_;
  std::int64_t size_;
};

}  // namespace lockstep
