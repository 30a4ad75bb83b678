// SPDX-License-Identifier: Apache-2.0
//
// Arrays of HDF5 files: their names, shapes, types and numbers.
#include <cmath>
#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "core/error.h"
#include "data/records/pack.h"
#include "data/records/records.h"
#include "tests/data/hdf5/hdf5_writer.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

Bytes planes() {
  const Bytes all = pixels();
  Bytes other(all.size());
  constexpr std::int64_t kPixels = kHeight * kWidth;
  for (std::int64_t n = 0; n < kImages; ++n)
    for (std::int64_t i = 0; i < kPixels; ++i)
      for (std::int64_t c = 0; c < kChannels; ++c)
        other[static_cast<std::size_t>((n * kChannels + c) * kPixels + i)] =
            all[static_cast<std::size_t>((n * kPixels + i) * kChannels + c)];
  return other;
}

// Expects that the message names train.h5 and contains a match of the pattern.
void expect_match(const std::string& message, const std::string& pattern) {
  EXPECT_TRUE(std::regex_search(message, std::regex("train\\.h5.*" + pattern))) << pattern << ": " << message;
}

TEST(Hdf5, ReadsImagesInEitherOrderPlainOrCompressed) {
  for (const bool zipped : {false, true}) {
    for (const bool channels_first : {false, true}) {
      const TemporaryFolder folder;
      {
        const Hdf5Writer train(folder.path() / "train.h5");
        if (channels_first) {
          train.put("images", {kImages, kChannels, kHeight, kWidth}, H5T_NATIVE_UINT8, planes(), zipped);
        } else {
          train.put("images", {kImages, kHeight, kWidth, kChannels}, H5T_NATIVE_UINT8, pixels(), zipped);
        }
        train.put("labels", {kImages, 1}, H5T_NATIVE_INT64, kLabels);
      }
      const auto dataset = open_dataset(options_of(folder), Split::train);
      expect_all(*dataset);
      EXPECT_EQ(dataset->classes(), 3);
      EXPECT_EQ(dataset->class_counts(), (std::vector<std::int64_t>{1, 1, 3}));
    }
  }
}

TEST(Hdf5, PackingWithSeveralThreadsKeepsTheData) {
  const TemporaryFolder folder;
  {
    const Hdf5Writer train(folder.path() / "my-train.hdf5");
    train.put("set/pictures", {kImages, kHeight, kWidth, kChannels}, H5T_NATIVE_UINT8, pixels(), true);
    train.put("set/classes", {kImages}, H5T_NATIVE_INT64, kLabels);
  }
  DatasetOptions options = options_of(folder);
  expect_parts(message_of<DataError>([&] { open_dataset(options, Split::train); }), {"data.hdf5.images"});
  options.hdf5 = {.images = "set/pictures", .labels = "set/classes"};
  const auto dataset = open_dataset(options, Split::train);
  pack({{.name = "train", .dataset = dataset.get()}}, folder.path() / "records", {.threads = 4});
  expect_all(*open_records({.path = folder.path() / "records"}, Split::train));
}

TEST(Hdf5, GrayTestImagesUseTheClassesOfTraining) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::vector<std::int64_t>& labels) {
    const Hdf5Writer file(folder.path() / name);
    file.put("x", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, 9));
    file.put("y", {2, 1, 1, 1}, H5T_NATIVE_INT64, labels);
  };
  write("train.h5", {4, 0});
  write("val.h5", {1, 1});
  auto test = open_dataset(options_of(folder), Split::test);
  EXPECT_EQ(test->classes(), 5);
  EXPECT_EQ(test->image_shape(), (ImageShape{.height = 3, .width = 5, .channels = 1}));
  test.reset();  // a file cannot be written while it is open
  write("val.h5", {1, 5});
  const std::string message = message_of<DataError>([&] { open_dataset(options_of(folder), Split::test); });
  EXPECT_TRUE(std::regex_search(message, std::regex(R"(val\.h5.*label 5\D+4\b)"))) << message;
}

TEST(Hdf5, FilesWithoutASetOfImagesAreNamed) {
  const TemporaryFolder folder;
  const auto complaint = [&](const auto& fill) {
    {
      const Hdf5Writer file(folder.path() / "train.h5");
      fill(file);
    }
    return message_of<DataError>([&] { open_dataset(options_of(folder), Split::train); });
  };
  const std::vector<std::int64_t> two = {0, 1};
  const auto images = [](const Hdf5Writer& file) {
    file.put("images", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30));
  };
  expect_parts(complaint([&](const Hdf5Writer& file) { file.put("labels", {2}, H5T_NATIVE_INT64, two); }),
               {"train.h5", "labels", "data.hdf5.images"});
  expect_parts(complaint(images), {"train.h5", "images", "data.hdf5.labels"});
  expect_parts(complaint([&](const Hdf5Writer& file) {
                 for (int i = 0; i < 30; ++i)
                   file.put(fmt::format("other{}", i).c_str(), {2}, H5T_NATIVE_INT64, two);
               }),
               {"other0, ", " and 10 more"});
  expect_match(complaint([&](const Hdf5Writer& file) {
                 for (const char* name : {"images_1", "images_2"})  // each with half of the samples
                   file.put(name, {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30));
                 for (const char* name : {"labels_1", "labels_2"}) file.put(name, {2}, H5T_NATIVE_INT64, two);
               }),
               R"("images_1" and "images_2".*data\.hdf5\.images)");
  expect_match(complaint([&](const Hdf5Writer& file) {
                 images(file);
                 file.put("labels", {3}, H5T_NATIVE_INT64, std::vector<std::int64_t>(3));
               }),
               R"("labels"\D+3\D+2 images)");
  expect_match(complaint([&](const Hdf5Writer& file) {
                 images(file);
                 file.put("labels", {2}, H5T_NATIVE_DOUBLE, std::vector<double>{0, 0.5});
               }),
               R"("labels"\D+0\.5)");
  expect_match(complaint([&](const Hdf5Writer& file) {
                 images(file);
                 file.put("labels", {2}, H5T_NATIVE_INT64, std::vector<std::int64_t>{0, -1});
               }),
               R"(labels\D*-1\D+0\b)");
  expect_match(complaint([&](const Hdf5Writer& file) {
                 file.put("images", {2, 15}, H5T_NATIVE_UINT8, Bytes(30));
                 file.put("labels", {2}, H5T_NATIVE_INT64, two);
               }),
               R"("images"\D+2\D+15\b)");
}

TEST(Hdf5, ExternalLinksAreNotFollowed) {
  const TemporaryFolder folder;
  {
    const Hdf5Writer other(folder.path() / "other.h5");
    other.put("images", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30));
  }
  {
    const Hdf5Writer file(folder.path() / "train.h5");
    file.put("labels", {2}, H5T_NATIVE_INT64, std::vector<std::int64_t>{0, 1});
    H5Lcreate_external("other.h5", "images", file.id(), "images", H5P_DEFAULT, H5P_DEFAULT);
  }
  expect_parts(message_of<DataError>([&] { open_dataset(options_of(folder), Split::train); }),
               {"train.h5", "labels", "data.hdf5.images"});
  DatasetOptions options = options_of(folder);
  options.hdf5.images = "images";
  expect_parts(message_of<DataError>([&] { open_dataset(options, Split::train); }),
               {"train.h5", "\"images\""});
}

// Common ways to divide files: names that contain the split, images and labels in separate files or in one.
TEST(Hdf5, NamesMayContainTheSplit) {
  const Bytes bytes(30, 9);
  const std::vector<std::int64_t> labels = {1, 0};
  const auto put = [&](const Hdf5Writer& file, const std::string& images, const std::string& of_labels) {
    if (!images.empty()) file.put(images.c_str(), {2, 3, 5}, H5T_NATIVE_UINT8, bytes);
    if (!of_labels.empty()) file.put(of_labels.c_str(), {2, 1}, H5T_NATIVE_INT64, labels);
  };
  const auto expect_both = [&](const TemporaryFolder& folder) {
    for (const Split split : {Split::train, Split::test}) {
      const auto dataset = open_dataset(options_of(folder), split);
      EXPECT_EQ(dataset->size(), 2);
      EXPECT_EQ(dataset->image_shape(), (ImageShape{.height = 3, .width = 5, .channels = 1}));
    }
  };
  {
    const TemporaryFolder folder;
    put(Hdf5Writer(folder.path() / "train_cats.h5"), "train_set_x", "train_set_y");
    put(Hdf5Writer(folder.path() / "test_cats.h5"), "test_set_x", "test_set_y");
    expect_both(folder);
  }
  {
    const TemporaryFolder folder;
    put(Hdf5Writer(folder.path() / "train.h5"), "train_x", "training_y");
    put(Hdf5Writer(folder.path() / "val.h5"), "val_x", "validation_y");
    expect_both(folder);
  }
  {
    const TemporaryFolder folder;
    put(Hdf5Writer(folder.path() / "split_train_x.h5"), "x", "");
    put(Hdf5Writer(folder.path() / "split_train_y.h5"), "", "y");
    put(Hdf5Writer(folder.path() / "split_valid_x.h5"), "x", "");
    put(Hdf5Writer(folder.path() / "split_valid_y.h5"), "", "y");
    expect_both(folder);
  }
  const TemporaryFolder folder;
  {
    const Hdf5Writer file(folder.path() / "data.h5");
    put(file, "X_train", "y_train");
    put(file, "X_test", "y_test");
  }
  folder.write("._data.h5", {1});  // macOS
  expect_both(folder);
  // An array whose name contains no split is not used for both splits.
  const TemporaryFolder other;
  put(Hdf5Writer(other.path() / "data.h5"), "images", "labels");
  expect_parts(message_of<DataError>([&] { open_dataset(options_of(other), Split::test); }),
               {"images, labels", "split", "data.hdf5.images"});
}

// Competitions provide unlabelled test images beside labelled ones for validation.
TEST(Hdf5, TestImagesAndLabelsHaveTheSameWord) {
  const std::vector<std::int64_t> labels = {1, 0};
  for (const bool in_groups : {false, true}) {
    for (const bool are_labelled : {false, true}) {
      const TemporaryFolder folder;
      {
        const Hdf5Writer file(folder.path() / "data.h5");
        for (const std::string split : {"train", "test", "val"}) {
          const std::uint8_t pixel = split == "test" ? 1 : 2;
          const std::string images = in_groups ? split + "/pictures" : "X_" + split;
          file.put(images.c_str(), {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, pixel));
          if (split == "test" && !are_labelled) continue;
          file.put((in_groups ? split + "/kinds" : "y_" + split).c_str(), {2}, H5T_NATIVE_INT64, labels);
        }
      }
      DatasetOptions options = options_of(folder);
      if (in_groups) options.hdf5 = {.images = "{split}/pictures", .labels = "{split}/kinds"};
      testing::internal::CaptureStderr();
      const auto test = open_dataset(options, Split::test);
      const std::string told = testing::internal::GetCapturedStderr();
      expect_parts(told, {"data.h5", "val", "test", "data.test_split"});
      EXPECT_EQ(told.find("warning") == std::string::npos, are_labelled) << told;
      Bytes image(15);
      test->read(0, image);
      EXPECT_EQ(image, Bytes(15, are_labelled ? std::uint8_t{1} : std::uint8_t{2}));
    }
  }
  const TemporaryFolder folder;
  {
    const Hdf5Writer file(folder.path() / "data.h5");
    for (const char* images : {"X_train", "X_test"})
      file.put(images, {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, 9));
    for (const char* names : {"y_train", "y_val"}) file.put(names, {2}, H5T_NATIVE_INT64, labels);
  }
  expect_parts(message_of<DataError>([&] { open_dataset(options_of(folder), Split::test); }),
               {"data.h5", "X_test", "y_val"});
}

// The word of the test split may be that of a fold, with a number.
TEST(Hdf5, TheWordOfTheTestSplitMayHaveDigits) {
  for (const bool in_groups : {false, true}) {
    const TemporaryFolder folder;
    {
      const Hdf5Writer file(folder.path() / "data.h5");
      for (const std::string split : {"train", "fold1", "fold2", "fold21", "fold3"}) {
        const std::uint8_t pixel = split == "fold2" ? 2 : 1;
        file.put((in_groups ? split + "/pictures" : "X_" + split).c_str(), {2, 3, 5}, H5T_NATIVE_UINT8,
                 Bytes(30, pixel));
        file.put((in_groups ? split + "/kinds" : "y_" + split).c_str(), {2}, H5T_NATIVE_INT64,
                 std::vector<std::int64_t>{1, 0});
      }
    }
    DatasetOptions options = options_of(folder);
    options.test_split = "fold2";
    if (in_groups) options.hdf5 = {.images = "{split}/pictures", .labels = "{split}/kinds"};
    Bytes image(15);
    open_dataset(options, Split::test)->read(0, image);
    EXPECT_EQ(image, Bytes(15, 2));
  }
}

TEST(Hdf5, NamesMayBeSetForBothSplits) {
  const TemporaryFolder folder;
  {
    const Hdf5Writer file(folder.path() / "all.h5");
    for (const char* split : {"train", "val"}) {
      file.put(fmt::format("{}/pictures", split).c_str(), {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, 9));
      file.put(fmt::format("{}/kinds", split).c_str(), {2}, H5T_NATIVE_INT64,
               std::vector<std::int64_t>{0, 1});
    }
  }
  DatasetOptions options = options_of(folder);
  options.hdf5.images = "train_pictures";
  expect_parts(message_of<DataError>([&] { open_dataset(options, Split::test); }),
               {"train/pictures", "{split}"});
  options.hdf5 = {.images = "{split}/pictures", .labels = "{split}/kinds"};
  for (const Split split : {Split::train, Split::test}) EXPECT_EQ(open_dataset(options, split)->size(), 2);
}

TEST(Hdf5, FloatingPointAndWideNumbersAreReadAsBytes) {
  for (const double largest : {1.0, 255.0}) {
    const TemporaryFolder folder;
    std::vector<float> values(30);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(largest * static_cast<double>(i) / 29);
    {
      const Hdf5Writer file(folder.path() / "train.h5");
      file.put("images", {2, 3, 5}, H5T_NATIVE_FLOAT, values);
      file.put("labels", {2}, H5T_NATIVE_FLOAT, std::vector<float>{0, 1});
    }
    const auto dataset = open_dataset(options_of(folder), Split::train);
    Bytes image(15);
    EXPECT_EQ(dataset->read(1, image), 1);
    for (std::size_t i = 0; i < image.size(); ++i)
      EXPECT_EQ(image[i], std::lround(255 * static_cast<double>(15 + i) / 29)) << i;
  }
  const TemporaryFolder folder;
  write_two(folder, "train.h5", H5T_NATIVE_INT64, std::vector<std::int64_t>(30, 256));
  Bytes image(15);
  const auto dataset = open_dataset(options_of(folder), Split::train);
  expect_match(message_of<DataError>([&] { dataset->read(0, image); }), R"("images"\D+0\D+256\b)");
}

// Opening a dataset and comparing it between ranks read some samples, the first among them.
TEST(Hdf5, ADamagedSampleIsAnErrorOnlyWhenItIsRead) {
  const TemporaryFolder folder;
  {
    const Hdf5Writer train(folder.path() / "train.h5");
    train.put("images", {4, 3, 5}, H5T_NATIVE_FLOAT, std::vector<float>(60, 255), true);
    train.put("labels", {4}, H5T_NATIVE_INT64, std::vector<std::int64_t>{0, 1, 0, 1});
    const hid_t images = H5Dopen2(train.id(), "images", H5P_DEFAULT);
    const hsize_t first_chunk[] = {0, 0, 0};
    const Bytes damage(8, 255);
    EXPECT_GE(H5Dwrite_chunk(images, H5P_DEFAULT, 0, first_chunk, damage.size(), damage.data()), 0);
    H5Dclose(images);
  }
  const auto dataset = open_dataset(options_of(folder), Split::train);
  EXPECT_NO_THROW(dataset->fingerprint());
  Bytes image(15);
  expect_match(message_of<DataError>([&] { dataset->read(0, image); }), R"("images"\D+0\b)");
  EXPECT_EQ(dataset->read(3, image), 1);
  EXPECT_EQ(image, Bytes(15, 255));
}

void write_floats(const TemporaryFolder& folder, const std::string& name, float largest) {
  std::vector<float> values(30);
  values.back() = largest;
  write_two(folder, name, H5T_NATIVE_FLOAT, values);
}

TEST(Hdf5, FloatingPointRangesThatCannotBeToldApartAreRefused) {
  const TemporaryFolder folder;
  write_floats(folder, "train.h5", 1.02f);
  expect_match(message_of<DataError>([&] { open_dataset(options_of(folder), Split::train); }),
               R"("images"\D+1\.02)");
  const TemporaryFolder mixed;
  write_floats(mixed, "train.h5", 1);
  write_floats(mixed, "test.h5", 255);
  expect_parts(message_of<DataError>([&] { open_dataset(options_of(mixed), Split::test); }),
               {"test.h5", "0 to 255", "train.h5", "0 to 1"});
}

// The range of bytes is certain, and each file is converted by its own range.
TEST(Hdf5, BytesAndFloatingPointNumbersMayBeCombined) {
  const TemporaryFolder folder;
  write_floats(folder, "test.h5", 1);
  write_two(folder, "train.h5", H5T_NATIVE_UINT8, Bytes(30, 255));
  for (const Split split : {Split::train, Split::test}) {
    Bytes image(15);
    open_dataset(options_of(folder), split)->read(1, image);
    EXPECT_EQ(image.back(), 255);
  }
}

TEST(Hdf5, ASmallFileThatClaimsManySamplesIsRefused) {
  const TemporaryFolder folder;
  {
    const Hdf5Writer file(folder.path() / "train.h5");
    file.put("images", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30));
    const hsize_t count = 2'000'000'000, chunk = 1000;
    const hid_t space = H5Screate_simple(1, &count, nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 1, &chunk);
    H5Dclose(H5Dcreate2(file.id(), "labels", H5T_NATIVE_INT64, space, H5P_DEFAULT, how, H5P_DEFAULT));
    H5Pclose(how);
    H5Sclose(space);
  }
  expect_parts(message_of<DataError>([&] { open_dataset(options_of(folder), Split::train); }),
               {"train.h5", "\"labels\"", "2000000000"});
}

}  // namespace
}  // namespace lockstep
