// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_augmentation.h"

#include <cstring>
#include <vector>

#include "core/error.h"
#include "kernels/pixel_targets.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

// Copies kBytes of each pixel; pixels are `stride` bytes apart. beside: each byte of pixels beside the image.
template <int kBytes>
void show(const Augment& augment, const Augment::View& view, const std::uint8_t* whole, std::uint8_t* to,
          std::int64_t stride = kBytes, std::uint8_t beside = 0) {
  for (int row = 0; row < augment.height; ++row) {
    for (int column = 0; column < augment.width; ++column, to += stride) {
      const int seen = augment.seen(view, row, column);
      if (seen < 0) {
        std::memset(to, beside, kBytes);
      } else {
        std::memcpy(to, whole + seen * stride, kBytes);
      }
    }
  }
}

}  // namespace

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

void HostAugmentation::operator()(SampleId sample, std::span<std::uint8_t> image,
                                  std::span<std::uint8_t> mask) const {
  CHECK(static_cast<std::int64_t>(image.size()) == pixels_ * channels_, "the image has {} bytes, expected {}",
        image.size(), pixels_ * channels_);
  CHECK(mask.empty() || static_cast<std::int64_t>(mask.size()) == pixels_,
        "the mask has {} bytes, expected {}", mask.size(), pixels_);
  if (colors_) jitter_.run(sample, pixels_, image.data(), image.data());
  if (places_) place(sample, image, mask);
}

void HostAugmentation::place(SampleId sample, std::span<std::uint8_t> image,
                             std::span<std::uint8_t> mask) const {
  thread_local std::vector<std::uint8_t> whole;
  const Augment::View view = augment_.view(sample);
  if (!mask.empty()) {
    whole.assign(mask.begin(), mask.end());
    show<1>(augment_, view, whole.data(), mask.data(), 1, kIgnoredPixel);
  }
  whole.assign(image.begin(), image.end());
  if (channels_ == 3) return show<3>(augment_, view, whole.data(), image.data());
  for (std::int64_t c = 0; c < channels_; ++c)
    show<1>(augment_, view, whole.data() + c, image.data() + c, channels_);
}

}  // namespace lockstep
