// SPDX-License-Identifier: Apache-2.0
#include "data/sets/subset.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/sets/held_images.h"
#include "data/sets/resident.h"
#include "tests/data/jpeg_files.h"
#include "tests/data/numbered_dataset.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

std::set<std::int64_t> numbers_of(std::int64_t size, Split split, double share) {
  const auto side = side_of(std::make_unique<NumberedDataset>(size), split, share);
  std::set<std::int64_t> numbers;
  std::vector<std::uint8_t> image(4);
  for (std::int64_t i = 0; i < side->size(); ++i) numbers.insert(side->read(i, image));
  EXPECT_EQ(std::ssize(numbers), side->size());
  return numbers;
}

TEST(Subset, SidesAreDisjointAndComplete) {
  const std::set train = numbers_of(5000, Split::train, 0.2), test = numbers_of(5000, Split::test, 0.2);
  EXPECT_EQ(train.size() + test.size(), 5000u);
  for (const std::int64_t number : test) EXPECT_FALSE(train.contains(number));
  EXPECT_NEAR(static_cast<double>(test.size()), 1000, 100);
  // With more samples, or a larger share, test samples remain test samples.
  const std::set later = numbers_of(6000, Split::test, 0.2), larger = numbers_of(5000, Split::test, 0.3);
  for (const std::int64_t number : test) {
    EXPECT_TRUE(later.contains(number));
    EXPECT_TRUE(larger.contains(number));
  }
}

TEST(Subset, AnEmptySideIsRefused) {
  expect_parts(message_of<ConfigError>([] { numbers_of(3, Split::test, 1e-9); }),
               {"data.validation_share", "1e-09", "3 samples"});
}

TEST(Subset, CountsTheClassesOfItsOwnSamples) {
  const auto side = [](Split split) {
    Bytes pixels(200);
    std::vector<std::int32_t> labels;
    for (std::size_t i = 0; i < pixels.size(); ++i) labels.push_back(i % 5 == 0 ? 2 : 1);
    return side_of(std::make_unique<HeldImages>(ImageShape{1, 1, 1}, 4, std::move(pixels), std::move(labels)),
                   split, 0.3);
  };
  std::int64_t of_class_2 = 0;
  for (const Split split : {Split::train, Split::test}) {
    const std::unique_ptr<Dataset> part = side(split);
    std::vector<std::int64_t> counts(4);
    Bytes image(1);
    for (std::int64_t i = 0; i < part->size(); ++i) {
      const std::int32_t label = part->read(i, image);
      EXPECT_EQ(part->label(i), label);
      ++counts[static_cast<std::size_t>(label)];
    }
    EXPECT_EQ(part->class_counts(), counts);
    of_class_2 += counts[2];
  }
  EXPECT_EQ(of_class_2, 40);
  expect_parts(summary_of(*side(Split::train), *side(Split::test)),
               {"from 0 (class 0)", "(class 1) of each"});
  // Labels that are unknown without reading the samples.
  EXPECT_TRUE(side_of(std::make_unique<NumberedDataset>(200), Split::train, 0.3)->class_counts().empty());
}

TEST(Subset, HasNoImagesOnTheDevice) {
  auto dataset = resident(std::make_shared<NumberedDataset>(200), nullptr, {.read = false});
  EXPECT_TRUE(side_of(std::move(dataset), Split::train, 0.3)->on_device().empty());
}

TEST(Subset, ImagesOfAFolderAreChosenByTheirNames) {
  const auto names_of = [](const std::vector<std::string>& names) {
    const TemporaryFolder folder;
    for (const std::string& name : names) folder.write("train/a/" + name, flat_jpeg({1, 2, 3}));
    folder.write("train/b/x.jpg", flat_jpeg({1, 2, 3}));
    const DatasetOptions options{
        .format = "image_folder", .path = folder.path(), .validation_share = 0.5, .synthetic = {}};
    const auto test = open_dataset(options, Split::test);
    EXPECT_EQ(test->size() + open_dataset(options, Split::train)->size(), std::ssize(names) + 1);
    EXPECT_EQ(test->class_names(), (std::vector<std::string>{"a", "b"}));
    Bytes image(static_cast<std::size_t>(test->image_shape().bytes()));
    EXPECT_EQ(test->label(0), test->read(0, image));
    std::set<std::uint64_t> keys;
    for (std::int64_t i = 0; i < test->size(); ++i) keys.insert(test->key(i));
    return keys;
  };
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back(fmt::format("{}.jpg", i));
  const std::set before = names_of(names);
  names.push_back("00.jpg");  // changes the indices of all other samples
  const std::set after = names_of(names);
  for (const std::uint64_t key : before) EXPECT_TRUE(after.contains(key));
}

// As frames of videos: train/CLASS/VIDEO/frames/0.jpg.
TEST(Subset, ImagesOfOneNameInNestedFoldersAreOnBothSides) {
  const TemporaryFolder folder;
  for (int i = 0; i < 60; ++i)
    folder.write(fmt::format("train/a/v{:02}/frames/0.jpg", i), flat_jpeg({1, 2, 3}));
  const DatasetOptions options{
      .format = "image_folder", .path = folder.path(), .validation_share = 0.5, .synthetic = {}};
  for (const Split split : {Split::train, Split::test}) {
    const std::int64_t size = open_dataset(options, split)->size();
    EXPECT_GE(size, 15);
    EXPECT_LE(size, 45);
  }
}

}  // namespace
}  // namespace lockstep
