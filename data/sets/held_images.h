// SPDX-License-Identifier: Apache-2.0
//
// HeldImages: a dataset held in memory, checked when it was read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

class HeldImages final : public Dataset {
 public:
  // pixels: [N, H, W, C] of the shape's type. labels: N, all in [0, classes). names: of classes, or none.
  HeldImages(ImageShape shape, std::int64_t classes, std::vector<std::uint8_t> pixels,
             std::vector<std::int32_t> labels, std::vector<std::string> names = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::optional<std::int32_t> label(std::int64_t index) const override {
    return labels_[static_cast<std::size_t>(index)];
  }
  std::vector<std::string> class_names() const override { return names_; }
  bool verified() const override { return true; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override;
  void will_read(std::int64_t index) const override;
  std::size_t memory_bytes() const override {
    return pixels_.capacity() + labels_.capacity() * sizeof(std::int32_t);
  }
  // Hashes all pixels and labels: that is faster than reading a few files.
  std::uint64_t fingerprint() const override;

 private:
  ImageShape shape_;
  std::int64_t classes_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
  std::vector<std::string> names_;
};

}  // namespace lockstep
