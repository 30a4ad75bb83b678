// SPDX-License-Identifier: Apache-2.0
#include "data/sets/held_images.h"

#include <algorithm>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/prefetch.h"

namespace lockstep {

HeldImages::HeldImages(ImageShape shape, std::int64_t classes, std::vector<std::uint8_t> pixels,
                       std::vector<std::int32_t> labels, std::vector<std::string> names)
    : shape_(shape),
      classes_(classes),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      names_(std::move(names)) {
  CHECK(static_cast<std::int64_t>(pixels_.size()) == size() * shape_.bytes(),
        "{} bytes of pixels for {} labels", pixels_.size(), labels_.size());
}

std::int32_t HeldImages::read(std::int64_t index, std::span<std::uint8_t> image) const {
  CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
        "sample {} of {} into {} bytes", index, size(), image.size());
  std::copy_n(pixels_.begin() + index * shape_.bytes(), shape_.bytes(), image.begin());
  return labels_[static_cast<std::size_t>(index)];
}

void HeldImages::will_read(std::int64_t index) const {
  const auto bytes = static_cast<std::size_t>(shape_.bytes());
  prefetch_lines(std::span(pixels_).subspan(static_cast<std::size_t>(index) * bytes, bytes));
}

std::uint64_t HeldImages::fingerprint() const {
  return XXH3_64bits_withSeed(pixels_.data(), pixels_.size(),
                              XXH3_64bits(labels_.data(), labels_.size() * sizeof(std::int32_t)));
}

}  // namespace lockstep
