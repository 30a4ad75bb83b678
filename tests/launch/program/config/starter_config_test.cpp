// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/starter_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/program/config/config.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Image i has one colour: red i (of more than 250 images, i of 250 in the whole folder), green 100; blue is 0
// in one half of all pixels and 200 in the other. Images from `sound` on cannot be decoded.
class Stripes final : public Dataset {
 public:
  Stripes(std::int64_t images, const ImageShape& shape) : Stripes(images, shape, images) {}
  Stripes(std::int64_t images, const ImageShape& shape, std::int64_t sound)
      : images_(images), shape_(shape), sound_(sound) {}
  std::int64_t size() const override { return images_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return 2; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (index >= sound_) throw DataError(fmt::format("image {} is damaged", index));
    for (std::int64_t at = 0; at < shape_.bytes(); at += 3) {
      std::uint8_t* pixel = image.data() + at;
      pixel[0] = static_cast<std::uint8_t>(index / std::max<std::int64_t>(images_ / 250, 1));
      pixel[1] = 100;
      pixel[2] = at / 3 % 2 == 0 ? 0 : 200;
    }
    return 0;
  }

 private:
  std::int64_t images_;
  ImageShape shape_;
  std::int64_t sound_;
};

Config loaded(const ImageSummary& summary, const std::string& data = "/images") {
  const TemporaryFolder folder;
  const std::string text = starter_config(summary, data, "own");
  folder.write("own.toml", Bytes(text.begin(), text.end()));
  return load_config((folder.path() / "own.toml").string(), {});
}

ImageSummary images(std::int64_t count, const ImageShape& shape) {
  const auto channels = static_cast<std::size_t>(shape.channels);
  return {.images = count,
          .classes = 2,
          .shape = shape,
          .mean = std::vector<double>(channels, 0.5),
          .deviation = std::vector<double>(channels, 0.25)};
}

constexpr ImageShape kColourImage{.height = 32, .width = 32, .channels = 3};

TEST(StarterConfig, MeasuresMeanAndDeviationOfEachChannel) {
  const ImageSummary summary = summarize(Stripes(101, {.height = 4, .width = 2, .channels = 3}));
  EXPECT_EQ(summary.images, 101);
  ASSERT_EQ(summary.mean.size(), 3u);
  EXPECT_NEAR(summary.mean[0], 50.0 / 255, 1e-9);
  EXPECT_NEAR(summary.mean[1], 100.0 / 255, 1e-9);
  EXPECT_NEAR(summary.mean[2], 100.0 / 255, 1e-9);
  EXPECT_NEAR(summary.deviation[0], std::sqrt((101.0 * 101 - 1) / 12) / 255, 1e-9);
  EXPECT_EQ(summary.deviation[1], 1) << "a constant channel has the deviation 1";
  EXPECT_NEAR(summary.deviation[2], 100.0 / 255, 1e-9);
}

TEST(StarterConfig, SamplesTheWholeFolderOfManyImages) {
  const ImageSummary summary = summarize(Stripes(250 * 200, {.height = 2, .width = 2, .channels = 3}));
  EXPECT_NEAR(summary.mean[2], 100.0 / 255, 1e-9);
  EXPECT_NEAR(summary.mean[0], 124.5 / 255, 0.05) << "sampled from the whole folder, not from its start";
}

TEST(StarterConfig, MeasuresWithoutImagesThatCannotBeDecoded) {
  const ImageShape shape{.height = 4, .width = 2, .channels = 3};
  EXPECT_NEAR(summarize(Stripes(101, shape, 51)).mean[0], 25.0 / 255, 1e-9);
  EXPECT_THROW(summarize(Stripes(101, shape, 0)), DataError);
}

TEST(StarterConfig, BatchFitsTheImages) {
  const std::pair<std::int64_t, std::int64_t> batches[] = {{1, 1},    {3, 1},    {9, 4},     {100, 8},
                                                           {256, 16}, {600, 32}, {1024, 64}, {1'000'000, 64}};
  for (const auto& [count, batch] : batches)
    EXPECT_EQ(loaded(images(count, kColourImage)).loader.batch, batch) << count;
  for (std::int64_t count = 2; count <= 20; ++count)
    EXPECT_LE(2 * loaded(images(count, kColourImage)).loader.batch, count) << "for 2 ranks";
}

TEST(StarterConfig, SmallImagesGetASmallNetworkAndColourImagesAreFlipped) {
  const Config colour = loaded(images(100, kColourImage));
  EXPECT_EQ(colour.model.name, "resnet20");
  EXPECT_TRUE(colour.network.augmentation.horizontal_flip);
  EXPECT_EQ(colour.network.augmentation.crop_padding, 4);
  const Config gray = loaded(images(100, {.height = 224, .width = 160, .channels = 1}));
  EXPECT_EQ(gray.model.name, "resnet18");
  EXPECT_FALSE(gray.network.augmentation.horizontal_flip);
  EXPECT_EQ(gray.network.mean, std::vector<double>{0.5});
  EXPECT_EQ(gray.network.deviation, std::vector<double>{0.25});
}

TEST(StarterConfig, RateIsChosenWithWarmUp) {
  const Config config = loaded(images(100, kColourImage));
  EXPECT_LT(config.schedule.learning_rate, 0.01);
  EXPECT_EQ(config.schedule.warmup_epochs, 1);
}

TEST(StarterConfig, FoldersWithSpecialCharactersAreQuoted) {
  EXPECT_EQ(loaded(images(10, kColourImage), "/a \"b\" \\c\n#").dataset.path, "/a \"b\" \\c\n#");
}

}  // namespace
}  // namespace lockstep
