// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_augmentation.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

constexpr std::int64_t kImages = 24;

struct ImageSize {
  std::int64_t height, width, channels;
  std::int64_t bytes() const { return height * width * channels; }
};

std::vector<std::uint8_t> images_of(const ImageSize& size) {
  std::vector<std::uint8_t> images(static_cast<std::size_t>(kImages * size.bytes()));
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * i % 253 + i % 3);
  return images;
}

std::vector<SampleId> samples() {
  std::vector<SampleId> ids;
  for (std::int32_t i = 0; i < kImages; ++i) ids.push_back({.epoch = i / 5, .index = 1000 - 7 * i});
  return ids;
}

// The device's result for these bytes, with the full augmentation on the device.
std::vector<float> activations(const ImageSize& size, const Augmentation& augmentation,
                               std::vector<std::uint8_t> images) {
  Stream stream(Device{}, StreamUse::compute);
  const std::vector<SampleId> ids = samples();
  if (augmentation.color.any()) {
    std::vector<std::uint8_t> colored(images.size());
    cpu_backend().color_jitter(stream, {.batch = kImages,
                                        .height = size.height,
                                        .width = size.width,
                                        .channels = size.channels,
                                        .how = augmentation.color,
                                        .key = augmentation.key,
                                        .images = images.data(),
                                        .samples = ids.data(),
                                        .output = colored.data()});
    images = colored;
  }
  const std::vector<float> mean(static_cast<std::size_t>(size.channels), 0.4f), deviation(mean.size(), 0.3f);
  const auto kernel = cpu_backend().image_input({.batch = kImages,
                                                 .height = size.height,
                                                 .width = size.width,
                                                 .channels = size.channels,
                                                 .mean = mean,
                                                 .deviation = deviation,
                                                 .augmentation = augmentation});
  std::vector<float> output(images.size()), shares(kImages);
  kernel->run(stream, images.data(), output.data(), ids.data(), {.shares = shares.data()});
  return output;
}

TEST(HostAugmentation, SplitBetweenHostAndDeviceGivesTheBitsOfTheDevice) {
  const PhiloxKey key = augmentation_key(5);
  const Augmentation augmentations[] = {
      {.crop_padding = 3, .key = key},
      {.horizontal_flip = true, .key = key},
      {.color = {.contrast = 0.5}, .key = key},
      {.crop_padding = 4, .horizontal_flip = true, .cutout = 5, .random_erasing = 0.5, .key = key},
      {.crop_padding = 2,
       .horizontal_flip = true,
       .cutout = 3,
       .mixup = 0.4,
       .cutmix = 1,
       .color = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
       .key = key},
  };
  for (const ImageSize& size : {ImageSize{8, 8, 3}, {13, 7, 1}, {6, 11, 3}, {9, 8, 2}}) {
    for (const Augmentation& augmentation : augmentations) {
      if (augmentation.color.any() && size.channels == 2) continue;
      const std::vector<std::uint8_t> images = images_of(size);
      std::vector<std::uint8_t> changed = images;
      const HostAugmentation host(augmentation, size.height, size.width, size.channels);
      const std::vector<SampleId> ids = samples();
      for (std::size_t i = 0; i < ids.size(); ++i)
        host(ids[i], std::span(changed).subspan(i * static_cast<std::size_t>(size.bytes()),
                                                static_cast<std::size_t>(size.bytes())));
      EXPECT_NE(changed, images);
      EXPECT_TRUE(augmentation.changes_bytes());
      EXPECT_FALSE(augmentation.behind_bytes().changes_bytes());
      EXPECT_EQ(activations(size, augmentation.behind_bytes(), changed),
                activations(size, augmentation, images))
          << size.height << " x " << size.width << " x " << size.channels << ", crop "
          << augmentation.crop_padding;
    }
  }
}

TEST(HostAugmentation, DoesNotEraseOrMix) {
  const Augmentation behind{.cutout = 4, .random_erasing = 1, .mixup = 0.4};
  EXPECT_FALSE(behind.changes_bytes());
  std::vector<std::uint8_t> image(48, 7);
  HostAugmentation(behind, 4, 4, 3)({.epoch = 1, .index = 2}, image);
  EXPECT_EQ(image, std::vector<std::uint8_t>(48, 7));
}

TEST(HostAugmentation, RefusesTheSameOptionsAsTheDevice) {
  EXPECT_THROW(HostAugmentation({.crop_padding = 9}, 8, 8, 3), ConfigError);
  EXPECT_THROW(HostAugmentation({.color = {.hue = 0.1}}, 8, 8, 2), ConfigError);
  EXPECT_THROW(HostAugmentation({.color = {.hue = -0.1}}, 8, 8, 3), ConfigError);
  std::vector<std::uint8_t> image(5);
  EXPECT_THROW(HostAugmentation({.crop_padding = 1}, 8, 8, 3)({}, image), Error);
  image.resize(8 * 8 * 3);
  std::vector<std::uint8_t> mask(8 * 7);
  EXPECT_THROW(HostAugmentation({.crop_padding = 1}, 8, 8, 3)({}, image, mask), Error);
}

}  // namespace
}  // namespace lockstep
