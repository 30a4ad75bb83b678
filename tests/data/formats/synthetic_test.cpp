// SPDX-License-Identifier: Apache-2.0
#include "data/formats/synthetic.h"

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Image = std::vector<std::uint8_t>;

Image image_of(const Dataset& dataset, std::int64_t index) {
  Image image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  EXPECT_EQ(dataset.read(index, image), index % dataset.classes());
  EXPECT_EQ(dataset.label(index), index % dataset.classes());
  return image;
}

TEST(Synthetic, HasTheRequestedShapeAndNumbers) {
  const SyntheticOptions options{
      .height = 5, .width = 3, .channels = 2, .classes = 7, .train_samples = 40, .test_samples = 9};
  const std::unique_ptr<Dataset> train = open_synthetic(options, Split::train);
  EXPECT_EQ(train->image_shape(), (ImageShape{5, 3, 2}));
  EXPECT_EQ(train->size(), 40);
  EXPECT_EQ(train->classes(), 7);
  EXPECT_EQ(train->class_counts(), (std::vector<std::int64_t>{6, 6, 6, 6, 6, 5, 5}));
  EXPECT_EQ(train->memory_bytes(), 0u);
  EXPECT_EQ(open_synthetic(options, Split::test)->size(), 9);
  EXPECT_EQ(
      open_dataset({.format = "synthetic", .path = "/no/such/folder", .synthetic = options}, Split::test)
          ->size(),
      9);
}

TEST(Synthetic, HasTheSamePixelsInEveryCallAndOnEveryThread) {
  const std::unique_ptr<Dataset> train = open_synthetic({}, Split::train);
  const std::unique_ptr<Dataset> again = open_synthetic({}, Split::train);
  std::set<Image> different;
  for (std::int64_t i = 0; i < 200; ++i) different.insert(image_of(*train, i));
  EXPECT_EQ(different.size(), 200u) << "each sample must have different noise";
  Image elsewhere;
  std::thread([&] { elsewhere = image_of(*again, 123); }).join();
  EXPECT_EQ(elsewhere, image_of(*train, 123));
  EXPECT_NE(image_of(*open_synthetic({}, Split::test), 123), elsewhere);
  EXPECT_EQ(train->fingerprint(), again->fingerprint());
  EXPECT_NE(train->fingerprint(), open_synthetic({}, Split::test)->fingerprint());
}

TEST(Synthetic, HasTheSamePixelsOnEveryMachine) {
  const auto train = open_synthetic({.height = 4, .width = 4, .channels = 1}, Split::train);
  EXPECT_EQ(image_of(*train, 13),
            (Image{41, 148, 53, 4, 241, 111, 107, 114, 154, 129, 87, 152, 78, 81, 185, 102}));
}

// The class means of training images classify test images: a network can learn that.
TEST(Synthetic, LabelsCanBeLearned) {
  const SyntheticOptions options{
      .height = 16, .width = 16, .channels = 3, .classes = 100, .train_samples = 800, .test_samples = 200};
  const std::unique_ptr<Dataset> train = open_synthetic(options, Split::train);
  const std::unique_ptr<Dataset> test = open_synthetic(options, Split::test);
  std::vector<std::vector<double>> means(100, std::vector<double>(16 * 16 * 3));
  for (std::int64_t i = 0; i < 800; ++i) {
    const Image image = image_of(*train, i);
    for (std::size_t at = 0; at < image.size(); ++at)
      means[static_cast<std::size_t>(i % 100)][at] += image[at] / 8.0;
  }
  int right = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const Image image = image_of(*test, i);
    double least = std::numeric_limits<double>::max();
    std::int64_t nearest = -1;
    for (std::int64_t label = 0; label < 100; ++label) {
      double distance = 0;
      for (std::size_t at = 0; at < image.size(); ++at)
        distance += std::pow(image[at] - means[static_cast<std::size_t>(label)][at], 2);
      if (distance < least) nearest = label;
      least = std::min(least, distance);
    }
    right += nearest == i % 100;
  }
  EXPECT_EQ(right, 200);
}

// The size costs nothing, and any sample is as fast to read as the first.
TEST(Synthetic, MayBeLargerThanAnyDisk) {
  const std::unique_ptr<Dataset> train = open_synthetic(
      {.height = 2, .width = 2, .channels = 1, .classes = 10, .train_samples = 1'000'000'000'000},
      Split::train);
  EXPECT_NE(image_of(*train, 0), image_of(*train, 999'999'999'990)) << "two samples of one class must differ";
}

TEST(Synthetic, RefusesInvalidOptions) {
  expect_parts(message_of<ConfigError>(
                   [] { open_synthetic({.classes = 20000, .train_samples = 20000}, Split::test); }),
               {"data.synthetic.test_samples = 10000", "data.synthetic.classes = 20000"});
  expect_parts(message_of<ConfigError>(
                   [] { open_synthetic({.height = 4096, .width = 4096, .channels = 1024}, Split::train); }),
               {"data.synthetic", "4096x4096x1024", "1073741824 bytes"});
}

}  // namespace
}  // namespace lockstep
