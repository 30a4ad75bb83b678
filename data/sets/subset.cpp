// SPDX-License-Identifier: Apache-2.0
#include "data/sets/subset.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/sets/wrapped.h"

namespace lockstep {
namespace {

class Subset final : public Wrapped {
 public:
  // 32 bits are enough: a BatchLoader accepts at most 2^31 - 1 samples.
  Subset(std::unique_ptr<Dataset> dataset, std::vector<std::uint32_t> samples)
      : Wrapped(std::move(dataset)), samples_(std::move(samples)) {}

  std::int64_t size() const override { return std::ssize(samples_); }
  std::vector<std::int64_t> class_counts() const override { return Dataset::class_counts(); }
  std::size_t memory_bytes() const override {
    return dataset().memory_bytes() + samples_.capacity() * sizeof(std::uint32_t);
  }
  // The other dataset's images in device memory are not in this order.
  std::span<const std::byte> on_device() const override { return {}; }
  std::uint64_t fingerprint() const override {
    return XXH3_64bits_withSeed(samples_.data(), samples_.size() * sizeof(std::uint32_t),
                                dataset().fingerprint());
  }

 private:
  std::int64_t inner(std::int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    return samples_[static_cast<std::size_t>(index)];
  }

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
