// SPDX-License-Identifier: Apache-2.0
//
// A dataset whose samples encode their own index, and a reader of these indices from a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/batch_loader.h"

namespace lockstep {

using Samples = std::vector<std::int64_t>;

// A sample's label is its index; its image is the index's four bytes.
class NumberedDataset : public Dataset {
 public:
  explicit NumberedDataset(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return {2, 1, 2}; }
  std::int64_t classes() const override { return size_; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::uint8_t>(index >> 8 * i);
    return static_cast<std::int32_t>(index);
  }

 private:
  std::int64_t size_;
};

// One sample cannot be decoded.
class OneDamaged final : public NumberedDataset {
 public:
  OneDamaged(std::int64_t size, std::int64_t damaged) : NumberedDataset(size), damaged_(damaged) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (index == damaged_) throw DataError("damaged");
    return NumberedDataset::read(index, image);
  }

 private:
  std::int64_t damaged_;
};

// The sample indices of a batch, -1 for padding. Checks that images, labels and weights match.
inline Samples samples_of(const Batch& batch) {
  Samples samples;
  const std::span<const std::uint8_t> images = batch.images.as<std::uint8_t>();
  const std::span<const std::int32_t> labels = batch.labels.as<std::int32_t>();
  const std::span<const float> weights = batch.weights.as<float>();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::uint8_t* image = images.data() + 4 * i;
    const std::int32_t number = image[0] | image[1] << 8 | image[2] << 16 | image[3] << 24;
    EXPECT_EQ(number, labels[i]);
    EXPECT_TRUE(weights[i] == 1.0f || (weights[i] == 0.0f && number == 0)) << weights[i] << " for " << number;
    EXPECT_EQ(batch.samples[i].index, number);
    samples.push_back(weights[i] == 0.0f ? -1 : number);
  }
  return samples;
}

}  // namespace lockstep
