// SPDX-License-Identifier: Apache-2.0
//
// Images of any size, resized while they are read.
#include "data/images/resized.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/batch_loader.h"
#include "data/formats/image_folder.h"
#include "data/images/png.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// A smooth image that survives coding and resampling: brightness rises to the right and downwards.
Bytes slope(const ImageShape& shape) {
  Bytes pixels;
  for (std::int64_t y = 0; y < shape.height; ++y)
    for (std::int64_t x = 0; x < shape.width; ++x)
      for (std::int64_t c = 0; c < shape.channels; ++c)
        pixels.push_back(
            static_cast<std::uint8_t>(40 + 60 * c + 60 * x / shape.width + 30 * y / shape.height));
  return pixels;
}

// Two images of each class, with different sizes and formats.
void write_images(const TemporaryFolder& folder) {
  const ImageShape wide{20, 45, 3}, high{64, 30, 3}, large{400, 300, 3}, gray{33, 33, 1};
  folder.write("train/a/wide.jpg", encode(wide, slope(wide)));
  folder.write("train/a/high.png", encode_png(high, slope(high)));
  folder.write("train/b/large.jpg", encode(large, slope(large)));
  folder.write("train/b/gray.png", encode_png(gray, slope(gray)));
  folder.write("test/a/large.jpg", encode(large, slope(large)));
}

std::unique_ptr<Dataset> open(const TemporaryFolder& folder, const ResizeOptions& options,
                              Split split = Split::train) {
  return open_dataset({.format = "image_folder", .path = folder.path(), .resize = options, .synthetic = {}},
                      split);
}

void expect_box(const ImageBox& box, double y, double x, double height, double width) {
  EXPECT_DOUBLE_EQ(box.y, y);
  EXPECT_DOUBLE_EQ(box.x, x);
  EXPECT_DOUBLE_EQ(box.height, height);
  EXPECT_DOUBLE_EQ(box.width, width);
}

// The boxes of torchvision's Resize and CenterCrop, computed by hand.
TEST(CenterBox, EqualsResizeAndCenterCrop) {
  // 500 x 375 pixels (width x height) become 341 x 256; the crop of 224 x 224 begins at 58 (58.5 rounds to
  // even) and 16.
  const double scale = 375.0 / 256;
  expect_box(center_box({375, 500, 3}, {.size = 224, .center_share = 224.0 / 256}), 16 * scale,
             58 * 500.0 / 341, 224 * scale, 224 * 500.0 / 341);
  expect_box(center_box({90, 30, 3}, {.size = 10}), 10 * 3.0, 0, 30, 30);
  expect_box(center_box({7, 7, 1}, {.size = 7}), 0, 0, 7, 7);
}

// The mean over areas from 8 % to 100 %, drawn uniformly, with ratios whose logarithm is drawn uniformly.
double mean_area_that_fits(double ratio_of_image) {
  constexpr int kSteps = 500;
  double sum = 0, fitting = 0;
  for (int i = 0; i < kSteps; ++i) {
    for (int j = 0; j < kSteps; ++j) {
      const double area = 0.08 + 0.92 * (i + 0.5) / kSteps;
      const double ratio = std::pow(4.0 / 3, 2 * (j + 0.5) / kSteps - 1);
      if (area * ratio > ratio_of_image || area * ratio_of_image > ratio) continue;
      sum += area;
      ++fitting;
    }
  }
  return sum / fitting;
}

TEST(RandomBox, FollowsRandomResizedCrop) {
  const ImageShape image{300, 400, 3};
  double areas = 0;
  constexpr int kBoxes = 2000;
  for (int i = 0; i < kBoxes; ++i) {
    const ImageBox box = random_box(image, {.seed = 1, .epoch = 2}, i);
    for (const double value : {box.y, box.x, box.height, box.width}) EXPECT_EQ(value, std::floor(value));
    EXPECT_GE(box.y, 0);
    EXPECT_GE(box.x, 0);
    EXPECT_LE(box.y + box.height, 300);
    EXPECT_LE(box.x + box.width, 400);
    const double area = box.height * box.width / (300 * 400);
    EXPECT_GT(area, 0.079);
    EXPECT_LT(area, 1.001);
    EXPECT_GT(box.width / box.height, 0.745);
    EXPECT_LT(box.width / box.height, 1.345);
    areas += area;
  }
  EXPECT_NEAR(areas / kBoxes, mean_area_that_fits(400.0 / 300), 0.015);
}

TEST(RandomBox, DependsOnSeedEpochAndSampleOnly) {
  const ImageShape image{300, 400, 3};
  const auto box = [&](std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
    const ImageBox found = random_box(image, {.seed = seed, .epoch = epoch}, index);
    return std::tuple(found.y, found.x, found.height, found.width);
  };
  EXPECT_EQ(box(1, 2, 3), box(1, 2, 3));
  const std::set different = {box(1, 2, 3), box(2, 2, 3), box(1, 3, 3), box(1, 2, 4)};
  EXPECT_EQ(different.size(), 4u);
}

TEST(RandomBox, UsesTheCentreOfNarrowImages) {
  const ImageBox box = random_box({1000, 10, 3}, {}, 0);
  EXPECT_EQ(box.width, 10);
  EXPECT_EQ(box.height, 13);  // 10 / (3 / 4)
  EXPECT_EQ(box.y, 493);
  EXPECT_EQ(random_box({1, 1, 3}, {}, 0).height, 1);
}

TEST(Resized, ImagesOfAnySizeAndFormatBecomeOneSize) {
  const TemporaryFolder folder;
  write_images(folder);
  const auto dataset = open(folder, {.size = 16});
  EXPECT_EQ(dataset->image_shape(), (ImageShape{16, 16, 3}));
  ASSERT_EQ(dataset->size(), 4);
  EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(dataset->class_counts(), (std::vector<std::int64_t>{2, 2}));
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_NO_THROW(dataset->probe(i));
    read(*dataset, i);
  }
  EXPECT_EQ(open(folder, {.size = 16}, Split::test)->size(), 1);
  // Without resizing they are refused, and the message suggests data.resize.
  const auto as_they_are = open(folder, {});
  expect_parts(message_of<DataError>([&] { as_they_are->probe(1); }), {"wide.jpg", "data.resize"});
}

// A PNG keeps its pixels exactly.
TEST(Resized, EqualsResamplingTheCentre) {
  const TemporaryFolder folder;
  write_images(folder);
  const ImageShape high{64, 30, 3};
  const Bytes pixels = slope(high);
  const auto dataset = open(folder, {.size = 16});
  Bytes expected(16 * 16 * 3);
  // 64 x 30 becomes 34 x 16, of which 16 rows begin at the ninth.
  resample(ImageView::of(pixels, high), {9 * 64.0 / 34, 0, 16 * 64.0 / 34, 30}, {16, 16, 3}, expected);
  EXPECT_EQ(read(*dataset, 0), expected);  // high.png
}

// 512 x 512 becomes 256 x 256, of which 224 columns begin at the 17th: pixel 32 of the image. Two pixels on
// each side of the first column's centre contribute, also those that the crop leaves out.
TEST(Resized, CentreCropIsCutAfterResizingByAWholeNumber) {
  const ImageShape shape{512, 512, 1};
  Bytes pixels(512 * 512);
  constexpr std::uint8_t kEdge[] = {240, 80, 160, 200};
  for (std::size_t y = 0; y < 512; ++y)
    std::ranges::copy(kEdge, pixels.begin() + static_cast<long>(512 * y + 31));
  const TemporaryFolder folder;
  for (const char* name : {"train/a/1.png", "train/b/1.png"}) folder.write(name, encode_png(shape, pixels));
  const Bytes found = read(*open(folder, {.size = 224, .center_share = 0.875}), 0);
  EXPECT_EQ(found[0], 145) << "0.125 * 240 + 0.375 * 80 + 0.375 * 160 + 0.125 * 200";
}

// Waves of at least 24 pixels, and at most one in each direction.
Bytes waves(const ImageShape& shape) {
  constexpr double kCircle = 6.283185307179586;
  const auto wave = [](std::int64_t at, std::int64_t side) {
    const double length = std::max(24.0, static_cast<double>(side));
    return std::sin(kCircle * (static_cast<double>(at) + 0.5) / length);
  };
  Bytes pixels;
  for (std::int64_t y = 0; y < shape.height; ++y)
    for (std::int64_t x = 0; x < shape.width; ++x)
      pixels.push_back(static_cast<std::uint8_t>(
          std::lround(128 + 60 * wave(x, shape.width) + 40 * wave(y, shape.height))));
  return pixels;
}

// Stripes of equal width with soft borders, along a side that no reduction divides.
Bytes stripes(const ImageShape& shape, double length) {
  constexpr double kCircle = 6.283185307179586;
  Bytes pixels;
  for (std::int64_t i = 0; i < shape.height * shape.width; ++i) {
    const double at = static_cast<double>(shape.width > 100 ? i % shape.width : i / shape.width) + 0.5;
    pixels.push_back(static_cast<std::uint8_t>(std::lround(128 + 100 * std::sin(kCircle * at / length))));
  }
  return pixels;
}

// The box of a fully decoded image, resized to size x size.
Bytes resized_in_full(const ImageView& image, const ImageBox& box, std::int64_t size) {
  Bytes result(static_cast<std::size_t>(size * size * image.shape.channels));
  resample(image, box, {size, size, image.shape.channels}, result);
  return result;
}

// A box of whole pixels, which is cut out and then resized.
Bytes cut_and_resized(const ImageView& image, const ImageBox& box, std::int64_t size) {
  const ImageView part =
      image.part(static_cast<std::int64_t>(box.y), static_cast<std::int64_t>(box.x),
                 static_cast<std::int64_t>(box.height), static_cast<std::int64_t>(box.width));
  return resized_in_full(part, {.height = box.height, .width = box.width}, size);
}

// libjpeg rounds sides up: 1001 pixels become 126, the last of which covers one pixel.
TEST(Resized, ReducedStripesOfOddSizesKeepTheirPlace) {
  for (const ImageShape& shape :
       {ImageShape{60, 1001, 1}, ImageShape{60, 1003, 1}, ImageShape{60, 1007, 1}, ImageShape{1001, 60, 1}}) {
    const TemporaryFolder folder;
    const Bytes file = encode(shape, stripes(shape, 160));
    folder.write("train/a/1.jpg", file);
    folder.write("train/b/1.jpg", file);
    const Bytes pixels = decode(file, shape);
    for (const std::int64_t size : {3, 6, 13, 29}) {
      const Bytes expected =
          resized_in_full(ImageView::of(pixels, shape), center_box(shape, {.size = size}), size);
      const Bytes found = read(*open(folder, {.size = size}), 0);
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 2) << shape.width << " to " << size << ", at " << i;
    }
    // Boxes anywhere along the long side.
    for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
      const ResizeOptions random{.size = 8, .random_crop = true};
      const Draw at{.seed = 1, .epoch = epoch};
      Bytes found(64);
      open(folder, random)->read_augmented(0, at, found);
      const Bytes expected = cut_and_resized(ImageView::of(pixels, shape), random_box(shape, at, 0), 8);
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 2) << shape.width << ", epoch " << epoch << ", at " << i;
    }
  }
}

// Every side from 1 to 64 and next to powers of two, with every reduction.
TEST(Resized, ReducedDecodingIsWithinTwoLevelsAtEverySize) {
  std::vector<std::int64_t> sides;
  for (std::int64_t side = 1; side <= 64; ++side) sides.push_back(side);
  for (const std::int64_t power : {128, 256, 512, 1024})
    for (const std::int64_t beside : {-1, 0, 1}) sides.push_back(power + beside);
  std::tuple<int, std::int64_t, std::int64_t, std::int64_t> worst;  // levels, height, width, size
  Thinning thinning;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    for (const std::int64_t other : thinning.taken({sides[i], sides[i * 37 % sides.size()]})) {
      const ImageShape shape{sides[i], other, 1};
      const TemporaryFolder folder;
      const Bytes file = encode(shape, waves(shape));
      folder.write("train/a/1.jpg", file);
      folder.write("train/b/1.jpg", file);
      const Bytes pixels = decode(file, shape);
      for (const std::int64_t size : {1, 2, 3, 5, 8, 15, 31, 63, 128}) {
        if (size > std::max(shape.height, shape.width)) continue;
        const Bytes expected =
            resized_in_full(ImageView::of(pixels, shape), center_box(shape, {.size = size}), size);
        const Bytes found = read(*open(folder, {.size = size}), 0);
        for (std::size_t at = 0; at < found.size(); ++at)
          worst = std::max(worst,
                           std::tuple(std::abs(found[at] - expected[at]), shape.height, shape.width, size));
      }
    }
  }
  const auto& [levels, height, width, size] = worst;
  EXPECT_LE(levels, 2) << height << " x " << width << " to " << size;
}

TEST(Resized, ImagesOfOneSizeAreResizedToo) {
  const auto options = [](std::int64_t size) {
    DatasetOptions made{.format = "synthetic"};
    made.resize.size = size;
    return made;
  };
  const auto plain = open_dataset(options(0), Split::train), larger = open_dataset(options(40), Split::train);
  Bytes expected(40 * 40 * 3);
  resample(ImageView::of(read(*plain, 7), {32, 32, 3}), {0, 0, 32, 32}, {40, 40, 3}, expected);
  EXPECT_EQ(read(*larger, 7), expected);
  EXPECT_EQ(larger->classes(), plain->classes());
}

TEST(Resized, DamagedImagesAreNamedAndCounted) {
  const TemporaryFolder folder;
  write_images(folder);
  folder.write("train/a/z.png", {0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0, 0});
  const ImageShape large{400, 300, 3};
  Bytes cut = encode(large, slope(large));
  cut.resize(cut.size() / 2);
  folder.write("train/b/cut.jpg", cut);
  const auto dataset = open(folder, {.size = 16});
  expect_parts(message_of<DataError>([&] { dataset->probe(2); }), {"a/z.png", "PNG"});
  expect_parts(message_of<DataError>([&] { read(*dataset, 2); }), {"a/z.png", "PNG"});
  EXPECT_EQ(dataset->damaged(), 0);
  read(*dataset, 3);
  EXPECT_EQ(dataset->damaged(), 1);
}

// All bytes of the batches of six epochs, in the order of the global batch.
Bytes batches_of(const Dataset& dataset, int ranks, int threads) {
  std::vector<Bytes> of_rank;
  std::vector<std::unique_ptr<BatchLoader>> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.push_back(
        std::make_unique<BatchLoader>(dataset, Shard{.rank = rank, .size = ranks},
                                      LoaderOptions{.batch = 4 / ranks, .seed = 5, .threads = threads}));
  Bytes all;
  for (int step = 0; step < 6; ++step) {
    for (const auto& loader : loaders) {
      const auto images = loader->next().images.as<std::uint8_t>();
      all.insert(all.end(), images.begin(), images.end());
    }
  }
  return all;
}

TEST(Resized, RandomCropsDoNotDependOnRanksAndThreads) {
  const TemporaryFolder folder;
  write_images(folder);
  const auto dataset = open(folder, {.size = 12, .random_crop = true});
  const Bytes expected = batches_of(*dataset, 1, 1);
  for (const int ranks : {1, 2, 4})
    for (const int threads : {1, 3})
      EXPECT_EQ(batches_of(*dataset, ranks, threads), expected) << ranks << threads;
  // Epochs have other crops of the same four images, not only another order.
  const auto crops_of = [&](long epoch) {
    constexpr long kBytes = 12 * 12 * 3;
    std::set<Bytes> crops;
    for (long i = 4 * epoch; i < 4 * epoch + 4; ++i)
      crops.emplace(expected.begin() + kBytes * i, expected.begin() + kBytes * (i + 1));
    return crops;
  };
  EXPECT_NE(crops_of(0), crops_of(1));
  // Evaluation uses no random numbers.
  Bytes image(12 * 12 * 3), same(12 * 12 * 3);
  dataset->read(0, image);
  open(folder, {.size = 12})->read(0, same);
  EXPECT_EQ(image, same);
}

}  // namespace
}  // namespace lockstep
