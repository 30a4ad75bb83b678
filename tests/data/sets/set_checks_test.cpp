// SPDX-License-Identifier: Apache-2.0
#include "data/sets/set_checks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "data/formats/image_folder.h"
#include "data/sets/held_images.h"
#include "data/sets/subset.h"
#include "tests/data/jpeg_files.h"
#include "tests/data/numbered_dataset.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr ImageShape kPixel{.height = 1, .width = 1, .channels = 1};

HeldImages held(const Bytes& pixels, std::int64_t classes = 2) {
  std::vector<std::int32_t> labels(pixels.size());
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % classes);
  return {kPixel, classes, pixels, labels};
}

std::string told(const Dataset& train, const Dataset& test) {
  testing::internal::CaptureStderr();
  tell_of_sets(train, test, "/data/set");
  return testing::internal::GetCapturedStderr();
}

TEST(SetChecks, SharedSamplesOfTrainAndTestAreReported) {
  const HeldImages train = held({1, 2, 3, 4}), apart = held({5, 6, 7}), mixed = held({9, 3, 8, 1});
  EXPECT_EQ(shared_samples(train, apart).shared, 0);
  EXPECT_EQ(told(train, apart), "");
  const SharedSamples found = shared_samples(train, mixed);
  EXPECT_EQ(found.looked_at, 4);
  EXPECT_EQ(found.shared, 2);
  EXPECT_EQ(found.first_test, 1);
  EXPECT_EQ(found.first_train, 2);
  expect_parts(told(train, mixed),
               {"warning", "/data/set", "2 of 4", "50.0 %", "test sample 1", "training sample 2"});
}

// Rows of a few integers are often equal by chance, within training as well as between sets.
TEST(SetChecks, FrequentlyRepeatedSmallSamplesAreNotReported) {
  constexpr ImageShape kRow{.height = 1, .width = 20, .channels = 1, .type = DType::f32};
  for (const ImageShape& shape : {kPixel, kRow}) {
    const auto repeated = [&](std::size_t samples) {
      const auto bytes = static_cast<std::size_t>(shape.bytes());
      Bytes values(samples * bytes);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i / bytes % 5);
      std::vector<std::int32_t> labels(samples);
      for (std::size_t i = 0; i < samples; ++i) labels[i] = static_cast<std::int32_t>(i % 2);
      return HeldImages(shape, 2, values, labels);
    };
    const HeldImages train = repeated(100), test = repeated(50);
    EXPECT_EQ(shared_samples(train, test).shared, 50);
    EXPECT_EQ(told(train, test), "");
  }
}

// Copies within training do not hide those in the test part.
TEST(SetChecks, CopiedImagesAreReported) {
  for (const int copies : {2, 4}) {
    const TemporaryFolder folder;
    for (int i = 0; i < 40; ++i)
      for (int copy = 0; copy < copies; ++copy)
        folder.write(fmt::format("train/{}/{}-{}.jpg", i % 2 == 0 ? "a" : "b", i, copy),
                     flat_jpeg({static_cast<std::uint8_t>(6 * i), 9, 9}));
    const DatasetOptions options{.format = "image_folder", .path = folder.path(), .validation_share = 0.2};
    expect_parts(told(*open_dataset(options, Split::train), *open_dataset(options, Split::test)),
                 {"warning", "/data/set", "training sample"});
  }
}

// More samples than a single rank should read before training.
class LargeDataset final : public Dataset {
 public:
  std::int64_t size() const override { return 10'000; }
  ImageShape image_shape() const override { return {.height = 224, .width = 224, .channels = 3}; }
  std::int64_t classes() const override { return 2; }
  std::int32_t read(std::int64_t, std::span<std::uint8_t>) const override { return 0; }
  std::uint64_t content_hash(std::int64_t index) const override {
    ++hashed;
    return static_cast<std::uint64_t>(index);
  }
  mutable std::int64_t hashed = 0;
};

TEST(SetChecks, OfALargeSetOnlySomeSamplesAreRead) {
  const LargeDataset train, test;
  EXPECT_EQ(shared_samples(train, test).looked_at, 4096);
  EXPECT_EQ(train.hashed, 4096);
  EXPECT_EQ(test.hashed, 4096);
}

TEST(SetChecks, FilesAreComparedByContentNotByName) {
  const TemporaryFolder folder;
  for (int i = 0; i < 6; ++i)
    folder.write(fmt::format("{}/{}/{}.jpg", i < 4 ? "train" : "test", i % 2 == 0 ? "a" : "b", i),
                 flat_jpeg({static_cast<std::uint8_t>(20 * i), 9, 9}));
  folder.write("test/a/copy.jpg", flat_jpeg({40, 9, 9}));
  for (const std::int64_t size : {0, 4}) {
    const DatasetOptions options{.format = "image_folder", .path = folder.path(), .resize = {.size = size}};
    const SharedSamples found =
        shared_samples(*open_dataset(options, Split::train), *open_dataset(options, Split::test));
    EXPECT_EQ(found.looked_at, 3);
    EXPECT_EQ(found.shared, 1);
  }
}

// 40 classes with three samples each, except for class 37.
HeldImages with_rare_class(int samples) {
  std::vector<std::int32_t> labels;
  for (std::int32_t label = 0; label < 40; ++label)
    labels.insert(labels.end(), static_cast<std::size_t>(label == 37 ? samples : 3), label);
  Bytes pixels(labels.size());
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  return {kPixel, 40, pixels, labels};
}

TEST(SetChecks, ClassesWithTooFewSamplesAreReported) {
  const HeldImages test = held({200, 201});
  const std::string one_class = told(held({1, 2, 3, 4}, 1), test);
  expect_parts(one_class, {"warning", "/data/set", "class"});
  EXPECT_EQ(std::ranges::count(one_class, '\n'), 1) << one_class;
  EXPECT_EQ(told(with_rare_class(3), test), "");
  for (const int samples : {0, 1}) {
    const std::string rare = told(with_rare_class(samples), test);
    expect_parts(rare, {"warning", "/data/set"});
    EXPECT_EQ(std::ranges::count(numbers_named_in(rare), 37.0), 1) << rare;
    EXPECT_EQ(std::ranges::count(rare, '\n'), 1) << rare;
  }
  // Class 0 has no sample and class 2 has one.
  const HeldImages gap(kPixel, 4, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 1, 1, 1, 1, 2, 3, 3});
  EXPECT_EQ(std::ranges::count(told(gap, test), '\n'), 2);
}

TEST(SetChecks, ImagesOfZerosAndOnesAreReported) {
  const HeldImages test = held({200, 201});
  expect_parts(told(held({0, 1, 0, 1}), test), {"warning", "/data/set", "4 examined", "255"});
  for (const Bytes& pixels : {Bytes{0, 0, 0, 0}, Bytes{0, 1, 2, 1}}) EXPECT_EQ(told(held(pixels), test), "");
}

// A dataset of a user's program, whose masks mark the second class with the value that is ignored.
class BinaryMasks final : public NumberedDataset {
 public:
  using NumberedDataset::NumberedDataset;
  bool has_masks() const override { return true; }
  void read_mask(std::int64_t, std::span<std::uint8_t> mask) const override {
    std::ranges::fill(mask, std::uint8_t{0});
    mask[1] = 255;
  }
};

TEST(SetChecks, MasksOfOneClassAndIgnoredPixelsAreReported) {
  expect_parts(told(BinaryMasks(9), held({200, 201})), {"warning", "/data/set", "8 examined", "0 to 8"});
}

// A dataset of a user's program.
TEST(SetChecks, LabelsOutsideTheClassesAreNamed) {
  class WrongLabels final : public NumberedDataset {
   public:
    using NumberedDataset::NumberedDataset;
    std::optional<std::int32_t> label(std::int64_t index) const override {
      return static_cast<std::int32_t>(index + 1);
    }
  };
  expect_parts(message_of([] { WrongLabels(8).class_counts(); }), {"sample 7", "label 8", "8 classes"});
}

// With data.validation_share. Labels count from 1, and all samples of class 3 are kept for testing.
TEST(SetChecks, ClassesWithoutSamplesInTheTrainingPartAreReported) {
  constexpr double kShare = 0.4;
  const auto part = [](Split split) {
    Bytes pixels(60);
    std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
    std::vector<std::int32_t> labels;
    for (std::size_t i = 0; i < pixels.size(); ++i)
      labels.push_back(is_kept_to_test(i, kShare) && i % 2 == 0 ? 3 : 1 + static_cast<std::int32_t>(i % 2));
    return side_of(std::make_unique<HeldImages>(kPixel, 4, std::move(pixels), std::move(labels)), split,
                   kShare);
  };
  const std::vector<std::int64_t> tested = part(Split::test)->class_counts();
  ASSERT_EQ(tested.size(), 4u);
  ASSERT_GT(tested[3], 0);
  const std::string log = told(*part(Split::train), *part(Split::test));
  expect_parts(log, {"warning", "/data/set", " 0, 3 "});
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
}

}  // namespace
}  // namespace lockstep
