// SPDX-License-Identifier: Apache-2.0
#include "data/sets/subset.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace lockstep {
namespace {

class Subset final : public Dataset {
 public:
  // 32 bits are enough: a BatchLoader accepts at most 2^31 - 1 samples.
  Subset(std::unique_ptr<Dataset> dataset, std::vector<std::uint32_t> samples)
      : dataset_(std::move(dataset)), samples_(std::move(samples)) {}

  std::int64_t size() const override { return std::ssize(samples_); }
  ImageShape image_shape() const override { return dataset_->image_shape(); }
  std::int64_t classes() const override { return dataset_->classes(); }
  std::optional<std::int32_t> label(std::int64_t index) const override { return dataset_->label(at(index)); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  std::uint64_t key(std::int64_t index) const override { return dataset_->key(at(index)); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    return dataset_->read(at(index), image);
  }
  std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                              std::span<std::uint8_t> image) const override {
    return dataset_->read_augmented(at(index), draw, image);
  }
  bool has_masks() const override { return dataset_->has_masks(); }
  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    dataset_->read_mask(at(index), mask);
  }
  ImageShape read_own_mask(std::int64_t index, std::vector<std::uint8_t>& mask) const override {
    return dataset_->read_own_mask(at(index), mask);
  }
  void will_read(std::int64_t index) const override { dataset_->will_read(at(index)); }
  bool draws() const override { return dataset_->draws(); }
  bool decodes() const override { return dataset_->decodes(); }
  ImageShape own_shape(std::int64_t index) const override { return dataset_->own_shape(at(index)); }
  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    return dataset_->read_own_size(at(index), least, image);
  }
  ImageCoding coding() const override { return dataset_->coding(); }
  std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const override {
    return dataset_->read_stored(at(index), bytes);
  }
  void probe(std::int64_t index) const override { dataset_->probe(at(index)); }
  bool verified() const override { return dataset_->verified(); }
  std::int64_t damaged() const override { return dataset_->damaged(); }
  std::size_t memory_bytes() const override {
    return dataset_->memory_bytes() + samples_.capacity() * sizeof(std::uint32_t);
  }
  std::uint64_t fingerprint() const override {
    return XXH3_64bits_withSeed(samples_.data(), samples_.size() * sizeof(std::uint32_t),
                                dataset_->fingerprint());
  }

 private:
  std::int64_t at(std::int64_t index) const {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    return samples_[static_cast<std::size_t>(index)];
  }

  std::unique_ptr<Dataset> dataset_;
  std::vector<std::uint32_t> samples_;
};

}  // namespace

bool is_kept_to_test(std::uint64_t key, double test_share) {
  constexpr std::uint64_t kPurpose = 0x76616c6964617465;  // seed, since keys may already be hashes
  const std::uint64_t hash = XXH3_64bits_withSeed(&key, sizeof(key), kPurpose);
  return static_cast<double>(hash >> 11) * 0x1p-53 < test_share;
}

std::unique_ptr<Dataset> side_of(std::unique_ptr<Dataset> dataset, Split split, double test_share) {
  std::vector<std::uint32_t> samples;
  for (std::int64_t i = 0; i < dataset->size(); ++i)
    if (is_kept_to_test(dataset->key(i), test_share) == (split == Split::test))
      samples.push_back(static_cast<std::uint32_t>(i));
  if (samples.empty()) {
    throw ConfigError(fmt::format("data.validation_share = {}: none of {} samples remains for {}", test_share,
                                  dataset->size(), split == Split::test ? "testing" : "training"));
  }
  samples.shrink_to_fit();
  return std::make_unique<Subset>(std::move(dataset), std::move(samples));
}

}  // namespace lockstep
