// SPDX-License-Identifier: Apache-2.0
//
// Wrapped: forwards every call to another dataset; derived classes override some of them.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "data/dataset.h"

namespace lockstep {

class Wrapped : public Dataset {
 public:
  explicit Wrapped(std::shared_ptr<const Dataset> dataset) : dataset_(std::move(dataset)) {}

  std::int64_t size() const override { return dataset_->size(); }
  ImageShape image_shape() const override { return dataset_->image_shape(); }
  std::int64_t classes() const override { return dataset_->classes(); }
  std::optional<std::int32_t> label(std::int64_t index) const override {
    return dataset_->label(inner(index));
  }
  std::vector<std::int64_t> class_counts() const override { return dataset_->class_counts(); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  std::uint64_t key(std::int64_t index) const override { return dataset_->key(inner(index)); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    return dataset_->read(inner(index), image);
  }
  std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                              std::span<std::uint8_t> image) const override {
    return dataset_->read_augmented(inner(index), draw, image);
  }
  bool has_masks() const override { return dataset_->has_masks(); }
  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    dataset_->read_mask(inner(index), mask);
  }
  ImageShape read_own_mask(std::int64_t index, std::vector<std::uint8_t>& mask) const override {
    return dataset_->read_own_mask(inner(index), mask);
  }
  void will_read(std::int64_t index) const override { dataset_->will_read(inner(index)); }
  bool draws() const override { return dataset_->draws(); }
  bool decodes() const override { return dataset_->decodes(); }
  bool resizes() const override { return dataset_->resizes(); }
  ImageShape own_shape(std::int64_t index) const override { return dataset_->own_shape(inner(index)); }
  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    return dataset_->read_own_size(inner(index), least, image);
  }
  ImageCoding coding() const override { return dataset_->coding(); }
  std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const override {
    return dataset_->read_stored(inner(index), bytes);
  }
  std::uint64_t content_hash(std::int64_t index) const override {
    return dataset_->content_hash(inner(index));
  }
  void probe(std::int64_t index) const override { dataset_->probe(inner(index)); }
  bool verified() const override { return dataset_->verified(); }
  std::int64_t damaged() const override { return dataset_->damaged(); }
  std::size_t memory_bytes() const override { return dataset_->memory_bytes(); }
  std::span<const std::byte> on_device() const override { return dataset_->on_device(); }
  std::uint64_t fingerprint() const override { return dataset_->fingerprint(); }

 protected:
  const Dataset& dataset() const { return *dataset_; }
  // The sample's index in the other dataset.
  virtual std::int64_t inner(std::int64_t index) const { return index; }

 private:
  std::shared_ptr<const Dataset> dataset_;
};

}  // namespace lockstep
