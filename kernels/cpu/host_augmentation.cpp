// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_augmentation.h"

#include <cstring>
#include <vector>

#include "core/error.h"
#include "kernels/shape_checks.h"

namespace lockstep {

HostAugmentation::HostAugmentation(const Augmentation& augmentation, std::int64_t height, std::int64_t width,
                                   std::int64_t channels)
    : pixels_(height * width),
      channels_(channels),
      colors_(augmentation.color.any()),
      places_(augmentation.crop_padding > 0 || augmentation.horizontal_flip),
      jitter_(Jitter::from({.channels = channels, .how = augmentation.color, .key = augmentation.key})),
      augment_(Augment::from(augmentation, height, width)) {
  check_image_input({.height = height, .width = width, .channels = channels, .augmentation = augmentation});
  augment_.cutout = 0;
  augment_.erased_below = 0;
}

void HostAugmentation::operator()(SampleId sample, std::span<std::uint8_t> image) const {
  CHECK(static_cast<std::int64_t>(image.size()) == pixels_ * channels_, "an image of {} bytes, not {}",
        image.size(), pixels_ * channels_);
  if (colors_) color(sample, image);
  if (places_) place(sample, image);
}

void HostAugmentation::color(SampleId sample, std::span<std::uint8_t> image) const {
  Jitter::View view = jitter_.view(sample);
  if (jitter_.needs_gray()) {
    double sum = 0;
    for (std::int64_t i = 0; i < pixels_; ++i)
      sum += jitter_.gray_before_contrast(jitter_.load(image.data() + i * channels_), view);
    view.gray = Jitter::mean_gray(sum, pixels_);
  }
  for (std::int64_t i = 0; i < pixels_; ++i) {
    std::uint8_t* pixel = image.data() + i * channels_;
    jitter_.store(jitter_(jitter_.load(pixel), view), pixel);
  }
}

void HostAugmentation::place(SampleId sample, std::span<std::uint8_t> image) const {
  thread_local std::vector<std::uint8_t> whole;
  whole.assign(image.begin(), image.end());
  const Augment::View view = augment_.view(sample);
  const auto bytes = static_cast<std::size_t>(channels_);
  std::uint8_t* to = image.data();
  for (int row = 0; row < augment_.height; ++row) {
    for (int column = 0; column < augment_.width; ++column, to += bytes) {
      const int seen = augment_.seen(view, row, column);
      if (seen < 0) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, whole.data() + seen * channels_, bytes);
      }
    }
  }
}

}  // namespace lockstep
