// SPDX-License-Identifier: Apache-2.0
#include "data/formats/image_folder.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/images/png.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

std::int32_t label(const Dataset& dataset, std::int64_t index) {
  Bytes image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  return dataset.read(index, image);
}

void expect_near(const Bytes& image, const Bytes& expected, int tolerance) {
  ASSERT_EQ(image.size(), expected.size());
  int most = 0;
  for (std::size_t i = 0; i < image.size(); ++i) most = std::max(most, std::abs(image[i] - expected[i]));
  EXPECT_LE(most, tolerance);
}

TEST(ImageFolder, SortsClassesAndFilesBytewise) {
  const TemporaryFolder folder;
  // Gray levels in the expected order: Z < _ < a < é, 10 < 2 < A < b.
  const char* names[] = {"Z/10.jpg", "Z/2.JPG", "Z/A.jpeg",      "Z/b.JpEg",
                         "_/x.jpg",  "a/x.jpg", "\xc3\xa9/x.jpg"};
  for (const int i : {3, 0, 5, 6, 1, 4, 2}) {
    folder.write(std::string("train/") + names[i], flat_jpeg({static_cast<std::uint8_t>(30 * i)}));
  }
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  ASSERT_EQ(dataset->size(), 7);
  EXPECT_EQ(dataset->classes(), 4);
  EXPECT_EQ(dataset->image_shape(), kGray);
  const std::int32_t labels[] = {0, 0, 0, 0, 1, 2, 3};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(label(*dataset, i), labels[i]) << i;
    EXPECT_NEAR(read(*dataset, i)[0], 30 * i, 2) << i;
  }
}

TEST(ImageFolder, TestSplitUsesTheLabelsOfTrain) {
  const TemporaryFolder folder;
  for (const char* name : {"ant", "bee", "cat"}) {
    folder.write(fmt::format("train/{}/1.jpg", name), flat_jpeg({1, 2, 3}));
  }
  folder.write("val/bee/1.jpg", flat_jpeg({200, 0, 0}));
  folder.write("val/cat/1.jpg", flat_jpeg({0, 200, 0}));
  std::unique_ptr<Dataset> test = open_image_folder({.path = folder.path()}, Split::test);
  ASSERT_EQ(test->size(), 2);
  EXPECT_EQ(test->classes(), 3);
  EXPECT_EQ(label(*test, 0), 1);
  EXPECT_EQ(label(*test, 1), 2);
  expect_near(read(*test, 1), flat(kColour, {0, 200, 0}), 3);

  folder.write("test/cat/1.jpg", flat_jpeg({5, 5, 5}));  // test/ has priority where both exist
  test = open_image_folder({.path = folder.path()}, Split::test);
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(label(*test, 0), 2);
}

TEST(ImageFolder, IgnoresFilesThatAreNoImages) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({1, 2, 3}));
  folder.write("train/a/0.gif", {1, 2, 3});
  folder.write("train/a/0jpg", {1, 2, 3});
  folder.write("train/a/.DS_Store", {1, 2, 3});
  folder.write("train/0.jpg", {1, 2, 3});
  folder.write("labels.txt", {1, 2, 3});
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(dataset->size(), 1);
  EXPECT_EQ(dataset->classes(), 1);
  expect_near(read(*dataset, 0), flat(kColour, {1, 2, 3}), 3);
}

TEST(ImageFolder, FollowsLinks) {
  const TemporaryFolder folder;
  folder.write("elsewhere/1.jpg", flat_jpeg({1, 2, 3}));
  std::filesystem::create_directory(folder.path() / "train");
  std::filesystem::create_symlink("../elsewhere", folder.path() / "train/a");
  std::filesystem::create_symlink("1.jpg", folder.path() / "elsewhere/2.jpg");
  std::filesystem::create_symlink("nowhere.jpg", folder.path() / "elsewhere/3.jpg");
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(read(*dataset, 0), read(*dataset, 1));
  expect_parts(message_of<IoError>([&] { read(*dataset, 2); }), {"3.jpg"});
}

TEST(ImageFolder, PixelsAreInRgbOrder) {
  const TemporaryFolder folder;
  const std::vector<Bytes> colours = {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {200, 100, 50}};
  for (std::size_t i = 0; i < colours.size(); ++i) {
    folder.write(fmt::format("train/a/{}.jpg", i), flat_jpeg(colours[i]));
  }
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(dataset->image_shape(), kColour);
  for (std::size_t i = 0; i < colours.size(); ++i) {
    expect_near(read(*dataset, static_cast<std::int64_t>(i)), flat(kColour, colours[i]), 3);
  }
}

TEST(ImageFolder, BytesEqualTheAccurateDecodingOfTurboJpeg) {
  const TemporaryFolder folder;
  constexpr ImageShape kOdd{.height = 37, .width = 51, .channels = 3};
  std::vector<Bytes> files;
  for (const int subsampling : {TJSAMP_444, TJSAMP_422, TJSAMP_420, TJSAMP_440, TJSAMP_411, TJSAMP_GRAY}) {
    for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
      const auto seed = static_cast<std::uint32_t>(files.size());
      files.push_back(encode(kOdd, noise(kOdd, seed), {.subsampling = subsampling, .flags = flags}));
      folder.write(fmt::format("train/a/{:02}.jpg", seed), files.back());
    }
  }
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  ASSERT_EQ(dataset->size(), static_cast<std::int64_t>(files.size()));
  for (std::size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(read(*dataset, static_cast<std::int64_t>(i)), decode(files[i], kOdd)) << i;
  }
}

TEST(ImageFolder, ConvertsToTheChannelsOfTheFirstImage) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({250, 10, 10}));
  folder.write("train/a/2.jpg", flat_jpeg({77}));
  std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(dataset->image_shape(), kColour);
  expect_near(read(*dataset, 1), flat(kColour, {77, 77, 77}), 2);

  folder.write("train/a/0.jpg", flat_jpeg({0}));
  dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(dataset->image_shape(), kGray);
  expect_near(read(*dataset, 1), flat(kGray, {82}), 3);  // 0.299 * 250 + 0.587 * 10 + 0.114 * 10
  expect_near(read(*dataset, 2), flat(kGray, {77}), 2);
}

TEST(ImageFolder, ThreadsReadTheSameBytes) {
  const TemporaryFolder folder;
  constexpr ImageShape kShape{.height = 40, .width = 40, .channels = 3};
  constexpr std::int64_t kFiles = 24;
  std::vector<Bytes> expected;
  for (std::int64_t i = 0; i < kFiles; ++i) {
    const Bytes jpeg = encode(kShape, noise(kShape, static_cast<std::uint32_t>(i)));
    expected.push_back(decode(jpeg, kShape));
    folder.write(fmt::format("train/{}/{:02}.jpg", i / 8, i), jpeg);
  }
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  constexpr std::int64_t kThreads = 4;
  std::vector<std::int64_t> wrong(kThreads);
  std::vector<std::thread> threads;
  for (std::int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Bytes image(static_cast<std::size_t>(kShape.bytes()));
      for (std::int64_t i = 0; i < 10 * kFiles; ++i) {
        const std::int64_t index = (i * (2 * thread + 1) + thread) % kFiles;
        const std::int32_t found = dataset->read(index, image);
        if (found != index / 8 || image != expected[static_cast<std::size_t>(index)]) {
          ++wrong[static_cast<std::size_t>(thread)];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::int64_t>(kThreads));
}

TEST(ImageFolder, MemoryIsLittleMoreThanTheNames) {
  const TemporaryFolder folder;
  const Bytes jpeg = flat_jpeg({1});
  for (int i = 0; i < 300; ++i) folder.write(fmt::format("train/a/{:04}.jpg", i), jpeg);
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_GE(dataset->memory_bytes(), 2'400u);
  EXPECT_LE(dataset->memory_bytes(), 5'000u);
}

TEST(ImageFolder, ReadChecksItsArguments) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  Bytes image(static_cast<std::size_t>(kGray.bytes()));
  EXPECT_THROW(dataset->read(1, image), Error);
  EXPECT_THROW(dataset->read(-1, image), Error);
  image.pop_back();
  EXPECT_THROW(dataset->read(0, image), Error);
}

// Hidden files and those of notebooks, archives and file managers are neither classes nor images.
TEST(ImageFolder, IgnoresHiddenFilesAndFilesOfTheSystem) {
  const TemporaryFolder folder;
  for (const char* name : {"train/cat/1.jpg", "train/dog/1.jpg", "test/cat/1.jpg",
                           "train/.ipynb_checkpoints/1-checkpoint.jpg", "test/.ipynb_checkpoints/1.jpg"})
    folder.write(name, flat_jpeg({1, 2, 3}));
  for (const char* name : {"train/__MACOSX/._1.jpg", "train/cat/._1.jpg", "train/cat/Thumbs.db"})
    folder.write(name, {0, 5, 22, 7});
  std::filesystem::create_directory(folder.path() / "train/@eaDir");
  testing::internal::CaptureStderr();
  const auto train = open_image_folder({.path = folder.path()}, Split::train);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(train->size(), 2);
  expect_parts(told, {"info", ".ipynb_checkpoints", "__MACOSX", "._*", "Thumbs.db", "@eaDir"});
  EXPECT_EQ(open_image_folder({.path = folder.path()}, Split::test)->size(), 1);
}

TEST(ImageFolder, ReadsEveryFileEndingAndFoldersWithinClasses) {
  const TemporaryFolder folder;
  for (const char* name : {"a/1.jfif", "a/2.JPE", "a/3.Jpeg", "a/4", "a/second/camera/1.jpg", "b/1.png"})
    folder.write(fmt::format("train/{}", name), flat_jpeg({1, 2, 3}));
  folder.write("train/a/README", {1, 2, 3});
  DatasetOptions options{.path = folder.path()};
  const auto all = open_image_folder(options, Split::train);
  EXPECT_EQ(all->class_counts(), (std::vector<std::int64_t>{5, 1}));
  for (std::int64_t i = 0; i < all->size(); ++i) expect_near(read(*all, i), flat(kColour, {1, 2, 3}), 3);

  options.recursive = false;
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_image_folder(options, Split::train)->class_counts(), (std::vector<std::int64_t>{4, 1}));
  std::string told = testing::internal::GetCapturedStderr();
  const std::string path = (folder.path() / "train").string();
  expect_parts(told, {"warning", path, "data.recursive"});
  told.erase(told.find(path), path.size());
  EXPECT_EQ(std::ranges::count(numbers_named_in(told), 1.0), 2)
      << "a/second/camera/1.jpg and a/README must be counted separately: " << told;
}

TEST(ImageFolder, ACircularLinkIsNamed) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  std::filesystem::create_directory_symlink("..", folder.path() / "train/a/up");
  expect_parts(message_of<DataError>([&] { open_image_folder({.path = folder.path()}, Split::train); }),
               {"train/a/up"});
}

// Competitions provide unlabelled test images beside labelled ones in val/.
TEST(ImageFolder, TestsWithTheFirstFolderThatHasLabels) {
  const TemporaryFolder folder;
  for (const char* name : {"train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/1.jpg",
                           "val/dog/2.jpg", "test/1.jpg", "extra/dog/1.jpg"})
    folder.write(name, flat_jpeg({1, 2, 3}));
  DatasetOptions options{.path = folder.path()};
  const auto told = [&](std::int64_t images) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(open_image_folder(options, Split::test)->size(), images);
    return testing::internal::GetCapturedStderr();
  };
  expect_parts(told(3), {"warning", "val/", "test/", "data.test_split"});
  folder.write("test/unknown/1.jpg", flat_jpeg({1, 2, 3}));
  expect_parts(told(3), {"warning", "val/", "data.test_split"});
  options.test_split = "extra";
  EXPECT_EQ(told(1), "");
  options.test_split = "none";
  expect_parts(message_of<IoError>([&] { open_image_folder(options, Split::test); }), {"data.test_split"});
  options.test_split = "auto";
  folder.write("test/cat/1.jpg", flat_jpeg({1, 2, 3}));
  expect_parts(message_of<DataError>([&] { open_image_folder(options, Split::test); }), {"test/unknown"});
}

TEST(ImageFolder, ChannelsFollowTheMajorityOfTrainingImages) {
  const TemporaryFolder folder;
  folder.write("train/a/0_scan.jpg", flat_jpeg({95}));
  for (const char* name : {"a/1", "a/2", "b/1", "b/2"})
    folder.write(fmt::format("train/{}.jpg", name), flat_jpeg({200, 50, 50}));
  folder.write("test/a/1.jpg", flat_jpeg({7}));
  DatasetOptions options{.path = folder.path()};
  testing::internal::CaptureStderr();
  const auto train = open_image_folder(options, Split::train);
  expect_parts(testing::internal::GetCapturedStderr(), {"warning", "1 of 5", "data.channels"});
  EXPECT_EQ(train->image_shape(), kColour);
  expect_near(read(*train, 1), flat(kColour, {200, 50, 50}), 3);
  EXPECT_EQ(open_image_folder(options, Split::test)->image_shape(), kColour);
  options.images.channels = 1;
  EXPECT_EQ(open_image_folder(options, Split::train)->image_shape(), kGray);
  options.images.channels = 2;
  EXPECT_THROW(open_image_folder(options, Split::train), ConfigError);
}

TEST(ImageFolder, ABrokenFirstImageDoesNotPreventOpening) {
  const TemporaryFolder folder;
  folder.write("train/a/0.jpg", {1, 2, 3});
  folder.write("train/a/1.jpg", flat_jpeg({9}));
  const auto train = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(train->image_shape(), kGray);
  EXPECT_THROW(read(*train, 0), DataError);
}

TEST(ImageFolder, IgnoredImagesAreReported) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  folder.write("train/b/1.JPEG", flat_jpeg({1}));
  folder.write("train/b/notes.txt", {1});
  folder.write("test/a/1.jpg", flat_jpeg({1}));
  const auto warnings = [&](Split split) {
    testing::internal::CaptureStderr();
    open_image_folder({.path = folder.path()}, split);
    return testing::internal::GetCapturedStderr();
  };
  expect_parts(warnings(Split::train), {"info", "1 .txt"});
  for (const char* name : {"train/a/2.bmp", "train/b/2.BMP", "train/b/3.webp"}) folder.write(name, {1});
  expect_parts(warnings(Split::train),
               {"warning", (folder.path() / "train").string(), "2 .bmp", "1 .webp", "1 .txt"});
  EXPECT_EQ(warnings(Split::test), "");
  for (const char* name : {"test/2.jpg", "test/3.jpg"}) folder.write(name, flat_jpeg({1}));
  expect_parts(warnings(Split::test), {"warning", "2 beside the class folders"});
}

TEST(ImageFolder, SummaryNamesTheLeastAndTheMostFrequentClass) {
  const TemporaryFolder folder;
  for (const char* name : {"train/ape/1.jpg", "train/bee/1.jpg", "train/bee/2.jpg", "test/bee/1.jpg"})
    folder.write(name, flat_jpeg({1}));
  const auto summary = [&] {
    return summary_of(*open_image_folder({.path = folder.path()}, Split::train),
                      *open_image_folder({.path = folder.path()}, Split::test));
  };
  expect_parts(summary(), {"3 training", "1 test", "8x12x1", "2 classes", "1 (ape)", "2 (bee)"});
  folder.write("train/ape/2.jpg", flat_jpeg({1}));
  expect_parts(summary(), {"4 training", "1 test", "8x12x1", "2 classes"});
  EXPECT_EQ(std::ranges::count(numbers_named_in(summary()), 2.0), 2)
      << "expected the number of classes and the images of each";
  for (const char* name : {"ape", "bee"}) EXPECT_EQ(summary().find(name), std::string::npos);
}

// The decoders write 1 or 3 bytes per pixel.
TEST(ImageList, OtherChannelsThanOneAndThreeAreRefused) {
  const TemporaryFolder folder;
  folder.write("1.jpg", encode(kColour, noise(kColour, 1)));
  folder.write("1.png", encode_png(kColour, noise(kColour, 1)));
  for (const std::int64_t channels : {2, 4}) {
    ImageShape shape = kColour;
    shape.channels = channels;
    const auto images =
        open_image_list({(folder.path() / "1.jpg").string(), (folder.path() / "1.png").string()}, shape, {});
    Bytes pixels(static_cast<std::size_t>(shape.bytes()));
    for (const std::int64_t index : {0, 1})
      expect_parts(message_of([&] { images->read(index, pixels); }),
                   {std::to_string(channels) + " channels"});
  }
}

}  // namespace
}  // namespace lockstep
