// SPDX-License-Identifier: Apache-2.0
#include "data/formats/masks.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/batch_loader.h"
#include "data/images/png.h"
#include "data/sets/set_checks.h"
#include "kernels/host_augmentation.h"
#include "kernels/pixel_targets.h"
#include "tests/data/images/png_chunks.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using MaskBytes = std::vector<std::uint8_t>;

constexpr ImageShape kPicture{.height = 6, .width = 8, .channels = 3};

MaskBytes mask_of(int image, const ImageShape& shape = kPicture) {
  MaskBytes mask(static_cast<std::size_t>(shape.height * shape.width));
  for (std::size_t i = 0; i < mask.size(); ++i)
    mask[i] = i == 5 ? std::uint8_t{9} : static_cast<std::uint8_t>((i + static_cast<std::size_t>(image)) % 3);
  return mask;
}

class MaskFolder : public ::testing::Test {
 protected:
  void add(const std::string& split, int image, const ImageShape& shape = kPicture) {
    MaskBytes pixels(static_cast<std::size_t>(shape.bytes()));
    for (std::size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(image));
    const std::string name = std::to_string(image) + ".png";
    folder_.write(split + "/images/" + name, encode_png(shape, pixels));
    folder_.write(split + "/masks/" + name, encode_png_values(shape, mask_of(image, shape)));
  }
  void SetUp() override {
    for (int i = 0; i < 4; ++i) add("train", i);
    add("val", 4);
  }
  DatasetOptions options() const {
    return {.format = "masks", .path = folder_.path().string(), .masks = {.classes = 3, .ignore_index = 9}};
  }

  TemporaryFolder folder_;
};

TEST_F(MaskFolder, PairsImagesWithMasksOfTheSameName) {
  folder_.write("train/images/5.bmp", {1});
  folder_.write("train/images/more/6.png", {1});
  testing::internal::CaptureStderr();
  const auto train = open_dataset(options(), Split::train), test = open_dataset(options(), Split::test);
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(lines_naming(log, "info"), {"train/images", "1 file"});
  expect_parts(lines_naming(log, "warning"), {"train/images", "1 folder"});
  EXPECT_EQ(train->size(), 4);
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(train->classes(), 3);
  EXPECT_EQ(train->image_shape(), kPicture);
  ASSERT_TRUE(train->has_masks());
  MaskBytes mask(48), expected = mask_of(2);
  train->read_mask(2, mask);
  expected[5] = kIgnoredPixel;
  EXPECT_EQ(mask, expected);
  EXPECT_NE(train->fingerprint(), test->fingerprint());
}

TEST_F(MaskFolder, AChoiceBetweenTestSplitsIsLogged) {
  add("test", 5);
  add("test", 6);
  for (const std::string word : {"auto", "val"}) {
    DatasetOptions chosen = options();
    chosen.test_split = word;
    testing::internal::CaptureStderr();
    EXPECT_EQ(open_dataset(chosen, Split::test)->size(), word == "auto" ? 2 : 1);
    open_dataset(chosen, Split::train);
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string named = lines_naming(log, "test/", "val/", "data.test_split");
    EXPECT_EQ(std::ranges::count(named, '\n'), word == "auto" ? 1 : 0) << log;
  }
}

TEST_F(MaskFolder, ATestFolderWithoutMasksIsPassedOver) {
  for (const int image : {5, 6}) add("test", image);
  std::filesystem::remove_all(folder_.path() / "test/masks");
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_dataset(options(), Split::test)->size(), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "data.test_split"), '\n'), 1) << log;
  expect_parts(lines_naming(log, "warning"), {"test/", "val/"});
  std::filesystem::remove_all(folder_.path() / "val");
  expect_parts(message_of<DataError>([&] { open_dataset(options(), Split::test); }),
               {"2 of 2 images have no mask", "data.test_split", "data.validation_share"});
}

TEST_F(MaskFolder, GrayMasksGiveTheirValues) {
  MaskBytes gray = mask_of(0);
  folder_.write("train/masks/0.png", encode_png({6, 8, 1}, gray));
  MaskBytes mask(48);
  open_dataset(options(), Split::train)->read_mask(0, mask);
  gray[5] = kIgnoredPixel;
  EXPECT_EQ(mask, gray);
}

TEST_F(MaskFolder, BadMasksAreNamedWithWhatIsWrong) {
  const auto refused = [&](int image) {
    MaskBytes mask(48);
    return message_of<DataError>([&] { open_dataset(options(), Split::train)->read_mask(image, mask); });
  };
  const auto name = [](int image) { return fmt::format("train/masks/{}.png", image); };
  MaskBytes values = mask_of(0);
  values[7] = 3;
  folder_.write(name(0), encode_png_values(kPicture, values));
  expect_parts(refused(0), {"0.png", "the value 3", "data.masks.classes = 3"});
  folder_.write(name(1), encode_png({6, 8, 3}, MaskBytes(6 * 8 * 3)));
  expect_parts(refused(1), {"1.png", "grayscale or palette"});
  folder_.write(name(2), encode_png_values({6, 7, 1}, MaskBytes(6 * 7)));
  expect_parts(refused(2), {"2.png", "7 pixels wide"});
  folder_.remove(name(3));
  expect_parts(message_of<DataError>([&] { open_dataset(options(), Split::train); }),
               {"1 of 4 images have no mask", "3.png"});
}

TEST_F(MaskFolder, ASplitOrTheNumberOfClassesThatIsMissingIsNamed) {
  std::filesystem::remove_all(folder_.path() / "val");
  expect_parts(message_of<IoError>([&] { open_dataset(options(), Split::test); }),
               {"test/images", "data.validation_share"});
  DatasetOptions without = options();
  without.masks.classes = 0;
  expect_parts(message_of<ConfigError>([&] { open_dataset(without, Split::train); }), {"data.masks.classes"});
  without.masks = {.classes = 256};
  expect_parts(message_of<ConfigError>([&] { open_dataset(without, Split::train); }), {"256", "255 classes"});
  without.masks = {.classes = 3, .ignore_index = 256};
  expect_parts(message_of<ConfigError>([&] { open_dataset(without, Split::train); }), {"256", "0 to 255"});
  DatasetOptions share = options();
  share.validation_share = 0.5;
  EXPECT_EQ(open_dataset(share, Split::train)->size() + open_dataset(share, Split::test)->size(), 4);
}

TEST_F(MaskFolder, MasksOfTwoClassesOfWhichOneIsIgnoredCauseAWarning) {
  MaskBytes mask(48);
  mask[3] = 255;
  for (int i = 0; i < 4; ++i)
    folder_.write(fmt::format("train/masks/{}.png", i), encode_png({6, 8, 1}, mask));
  const auto warnings = [&] {
    testing::internal::CaptureStderr();
    DatasetOptions two = options();
    two.masks = {.classes = 2};
    tell_of_sets(*open_dataset(two, Split::train), *open_dataset(options(), Split::test), two.path);
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  expect_parts(warnings(), {folder_.path().string(), "4 examined", "data.masks.ignore_index"});
  mask[4] = 1;
  folder_.write("train/masks/2.png", encode_png({6, 8, 1}, mask));
  EXPECT_EQ(warnings(), "");
}

// A tool that edits photos may keep the EXIF data of a photo in its mask, also after the pixels.
TEST_F(MaskFolder, AMaskIsTurnedAsItsExifDataSays) {
  for (int image = 0; image < 4; ++image) {
    const MaskBytes values = mask_of(image);
    MaskBytes picture = encode_png({6, 8, 1}, values), mask = encode_png_values(kPicture, values);
    insert_chunk(picture, "eXIf", exif(6, true));
    const auto insert = image < 2 ? insert_chunk : insert_late_chunk;
    insert(mask, "eXIf", exif(6, true));
    folder_.write(fmt::format("train/images/{}.png", image), picture);
    folder_.write(fmt::format("train/masks/{}.png", image), mask);
  }
  const auto train = open_dataset(options(), Split::train);
  ASSERT_EQ(train->image_shape(), (ImageShape{.height = 8, .width = 6, .channels = 1}));
  MaskBytes image(48), mask(48);
  for (const std::int64_t sample : {2, 1}) {
    train->probe(sample);
    train->read(sample, image);
    train->read_mask(sample, mask);
    std::ranges::replace(image, std::uint8_t{9}, kIgnoredPixel);
    EXPECT_EQ(mask, image) << sample;
  }

  DatasetOptions as_stored = options();
  as_stored.images.exif_orientation = ExifOrientation::ignore;
  open_dataset(as_stored, Split::train)->read_mask(1, mask);
  EXPECT_NE(mask, image);
}

// A palette mask in which the values 0 and 1 have each other's colour.
MaskBytes with_exchanged_colours(const MaskBytes& png) {
  constexpr std::string_view kName = "PLTE";
  const auto name = std::search(png.begin(), png.end(), kName.begin(), kName.end());
  const auto colours = name + std::ssize(kName), end = colours + 3 * 256;
  MaskBytes palette(colours, end), changed(png.begin(), name - 4);
  std::swap_ranges(palette.begin(), palette.begin() + 3, palette.begin() + 3);
  append_chunk(changed, std::string(kName), palette);
  changed.insert(changed.end(), end + 4, png.end());
  return changed;
}

TEST_F(MaskFolder, AValueWithSeveralColoursCausesAWarning) {
  const auto warnings = [&] {
    testing::internal::CaptureStderr();
    open_dataset(options(), Split::train);
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  EXPECT_EQ(warnings(), "");
  folder_.write("train/masks/2.png", with_exchanged_colours(encode_png_values(kPicture, mask_of(2))));
  expect_parts(warnings(), {"masks/0.png", "masks/2.png", "palette"});
}

// Each image of 12x12 is made of 2x2 equal pixels of an image of 6x6.
TEST_F(MaskFolder, ResizingTakesTheNearestPixelOfTheMask) {
  constexpr ImageShape kSmall{.height = 6, .width = 6, .channels = 3};
  constexpr ImageShape kLarge{.height = 12, .width = 12, .channels = 3};
  const MaskBytes small = mask_of(0, kSmall);
  MaskBytes large(144);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = small[i / 24 * 6 + i % 12 / 2];
  folder_.write("train/images/0.png", encode_png(kLarge, MaskBytes(144 * 3)));
  folder_.write("train/masks/0.png", encode_png_values(kLarge, large));
  DatasetOptions resized = options();
  resized.resize.size = 6;
  const auto train = open_dataset(resized, Split::train);
  MaskBytes mask(36), expected = small;
  train->read_mask(0, mask);
  expected[5] = kIgnoredPixel;
  EXPECT_EQ(mask, expected);
  resized.resize.random_crop = true;
  expect_parts(message_of<ConfigError>([&] { open_dataset(resized, Split::train); }),
               {"data.random_resized_crop"});
}

// Memory for its pixels would be more than the host has.
TEST_F(MaskFolder, AHeaderOfAHugeMaskIsRefused) {
  for (const char* kind : {"images", "masks"})
    folder_.write(fmt::format("train/{}/3.png", kind), huge_png(8));
  DatasetOptions resized = options();
  resized.resize.size = 64;
  const auto train = open_dataset(resized, Split::train);
  MaskBytes mask(64 * 64);
  expect_parts(message_of<DataError>([&] { train->read_mask(3, mask); }),
               {"train/masks/3.png", std::to_string(kMostImageBytes)});
}

// The job ends, as without resizing: the disk may be at fault, and all of its images be missing.
TEST_F(MaskFolder, AnImageThatCannotBeReadIsNoDamagedImage) {
  for (const std::int64_t size : {0, 6}) {
    DatasetOptions resized = options();
    resized.resize.size = size;
    const auto train = open_dataset(resized, Split::train);
    const auto missing = folder_.path() / "train/images/0.png", kept = folder_.path() / "kept.png";
    std::filesystem::rename(missing, kept);
    MaskBytes image(static_cast<std::size_t>(train->image_shape().bytes()));
    expect_parts(message_of<IoError>([&] { train->read(0, image); }), {missing.string()});
    std::filesystem::rename(kept, missing);
  }
}

TEST_F(MaskFolder, ALinkToItselfIsAnImageThatCannotBeRead) {
  add("train", 9);
  const auto image = folder_.path() / "train/images/9.png";
  std::filesystem::remove(image);
  std::filesystem::create_symlink("9.png", image);
  const auto train = open_dataset(options(), Split::train);
  ASSERT_EQ(train->size(), 5);
  MaskBytes pixels(static_cast<std::size_t>(kPicture.bytes()));
  expect_parts(message_of<IoError>([&] { train->read(4, pixels); }), {image.string()});
}

TEST_F(MaskFolder, BatchesHaveMasksThatAreFlippedAndCroppedWithTheirImages) {
  const auto train = open_dataset(options(), Split::train);
  const Augmentation augmentation{.crop_padding = 1, .horizontal_flip = true, .key = augmentation_key(3)};
  BatchLoader loader(*train, {},
                     {.batch = 4, .augmentation = std::make_shared<HostAugmentation>(augmentation, 6, 8, 3)});
  bool moved = false;
  for (int step = 0; step < 6; ++step) {
    const Batch& batch = loader.next();
    ASSERT_EQ(batch.labels.shape, (Shape{4, 6, 8}));
    ASSERT_EQ(batch.labels.dtype, DType::u8);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int64_t sample = batch.samples[i].index;
      MaskBytes pixels(144), mask(48);
      train->read(sample, pixels);
      train->read_mask(sample, mask);
      for (std::size_t at = 0; at < 48; ++at) {
        const auto* pixel = static_cast<const std::uint8_t*>(batch.images.data) + (i * 48 + at) * 3;
        const std::uint8_t label = batch.labels.as<std::uint8_t>()[i * 48 + at];
        // The source pixel is found by its colour.
        std::set<std::uint8_t> labels;
        for (std::size_t from = 0; from < 48; ++from)
          if (std::equal(pixel, pixel + 3, &pixels[from * 3])) labels.insert(mask[from]);
        if (labels.empty()) {
          EXPECT_EQ(label, kIgnoredPixel) << "beside the image";
          moved = true;
        } else {
          EXPECT_TRUE(labels.contains(label));
        }
      }
    }
  }
  EXPECT_TRUE(moved);
}

TEST(Shapes, HaveTheirClassInTheMaskAndTheSamePixelsOnEveryMachine) {
  const auto train = open_dataset({.format = "shapes", .path = "none"}, Split::train);
  const auto test = open_dataset({.format = "shapes", .path = "none"}, Split::test);
  EXPECT_EQ(train->size(), 4000);
  EXPECT_EQ(test->size(), 500);
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"background", "circle", "square", "triangle"}));
  MaskBytes image(64 * 64 * 3), mask(64 * 64);
  std::vector<std::int64_t> counts(4);
  for (std::int64_t sample = 0; sample < 200; ++sample) {
    train->read(sample, image);
    train->read_mask(sample, mask);
    for (std::size_t i = 0; i < mask.size(); ++i) {
      ASSERT_LT(mask[i], 4);
      ++counts[mask[i]];
      // The background is below 96, shapes are at least 160, and noise adds -48 to 47.
      for (std::size_t c = 0; c < 3; ++c) {
        if (mask[i] == 0)
          ASSERT_LT(image[i * 3 + c], 96 + 48);
        else
          ASSERT_GE(image[i * 3 + c], 160 - 48);
      }
    }
  }
  for (const std::int64_t count : counts) EXPECT_GT(count, 200 * 64 * 64 / 50);
  train->read(5, image);
  train->read_mask(5, mask);
  EXPECT_EQ(MaskBytes(image.begin(), image.begin() + 6), (MaskBytes{92, 131, 99, 137, 76, 7}));
  EXPECT_EQ(std::ranges::count(mask, std::uint8_t{2}), 1370);
}

}  // namespace
}  // namespace lockstep
