// SPDX-License-Identifier: Apache-2.0
#include "data/formats/idx.h"

#include <memory>
#include <numeric>
#include <regex>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/data/idx_files.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";

// Three images of 2x3 whose pixels count up from 0, labels 4, 0, 9.
struct Files {
  Bytes images;
  Bytes labels = idx_labels({4, 0, 9});

  Files() {
    Bytes pixels(18);
    std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
    images = idx_images(3, 2, 3, pixels);
  }
};

void expect_the_three_images(const Dataset& dataset) {
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.image_shape(), (ImageShape{2, 3, 1}));
  EXPECT_EQ(dataset.classes(), 10);
  EXPECT_EQ(dataset.class_counts(), (std::vector<std::int64_t>{1, 0, 0, 0, 1, 0, 0, 0, 0, 1}));
  expect_parts(summary_of(dataset, dataset),
               {"3 training", "3 test", "2x3x1", "10 classes", "class 1", "class 0"});
  Bytes image(6);
  EXPECT_EQ(dataset.read(2, image), 9);
  EXPECT_EQ(image, (Bytes{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(dataset.read(0, image), 4);
  EXPECT_EQ(image, (Bytes{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(dataset.read(1, image), 0);
}

// The message of the error that opening throws; "" if it throws none.
template <typename E>
std::string error_of(const std::filesystem::path& folder, Split split = Split::train) {
  return message_of<E>([&] { open_idx(folder, split); });
}

// The error with one broken file; the other file is sound.
std::string data_error(const TemporaryFolder& folder, const std::string& name, const Bytes& broken) {
  const Files files;
  folder.write(kImages, files.images);
  folder.write(kLabels, files.labels);
  folder.write(name, broken);
  const std::string plain = name.ends_with(".gz") ? name.substr(0, name.size() - 3) : "";
  if (!plain.empty()) folder.remove(plain);
  const std::string error = error_of<DataError>(folder.path());
  folder.remove(name);
  return error;
}

// The position that the error names, as in "byte 34"; -1 if it names none.
std::int64_t byte_in(const std::string& error) {
  static const std::regex position(R"(\bbyte (\d+))");
  std::smatch found;
  return std::regex_search(error, found, position) ? std::stoll(found[1]) : -1;
}

TEST(Idx, ReadsPlainAndGzip) {
  const Files files;
  for (const bool zipped : {false, true}) {
    const TemporaryFolder folder;
    const std::string suffix = zipped ? ".gz" : "";
    folder.write(kImages + suffix, zipped ? gzip(files.images) : files.images);
    folder.write(kLabels + suffix, zipped ? gzip(files.labels) : files.labels);
    expect_the_three_images(*open_idx(folder.path(), Split::train));
  }
}

TEST(Idx, PrefersThePlainFileIfBothExist) {
  const Files files;
  const TemporaryFolder folder;
  folder.write(kImages, files.images);
  folder.write(kLabels, files.labels);
  folder.write(std::string(kLabels) + ".gz", {1, 2, 3});
  expect_the_three_images(*open_idx(folder.path(), Split::train));
}

TEST(Idx, ReadsAGzipFileOfSeveralStreams) {
  const Files files;
  const TemporaryFolder folder;
  folder.write(kLabels, files.labels);
  Bytes joined = gzip({files.images.begin(), files.images.begin() + 20});
  const Bytes rest = gzip({files.images.begin() + 20, files.images.end()});
  joined.insert(joined.end(), rest.begin(), rest.end());
  folder.write(std::string(kImages) + ".gz", joined);
  expect_the_three_images(*open_idx(folder.path(), Split::train));
}

// Larger than one input buffer and one chunk of memory.
TEST(Idx, ReadsLargeFiles) {
  const TemporaryFolder folder;
  Bytes pixels(3'000 * 28 * 28);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<std::uint8_t>(i * 2654435761u >> 24);
  const Bytes images = idx_images(3'000, 28, 28, pixels);
  folder.write("t10k-labels-idx1-ubyte", idx_labels(Bytes(3'000, 1)));
  for (const bool zipped : {true, false}) {  // the plain file has priority if it exists
    folder.write(zipped ? "t10k-images-idx3-ubyte.gz" : "t10k-images-idx3-ubyte",
                 zipped ? gzip(images) : images);
    const std::unique_ptr<Dataset> dataset = open_idx(folder.path(), Split::test);
    Bytes image(28 * 28);
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      dataset->read(i, image);
      ASSERT_TRUE(std::equal(image.begin(), image.end(), pixels.begin() + i * 28 * 28)) << i;
    }
  }
}

TEST(Idx, ReadsImagesOfSeveralChannels) {
  const TemporaryFolder folder;
  constexpr ImageShape kShape{.height = 2, .width = 3, .channels = 3};
  Bytes pixels(2 * 18);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  const std::string name = "train-images-idx4-ubyte";
  folder.write(name + ".gz", gzip(idx_colour_images(2, kShape, pixels)));
  folder.write(kLabels, idx_labels({1, 0}));
  const std::unique_ptr<Dataset> dataset = open_idx(folder.path(), Split::train);
  EXPECT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->image_shape(), kShape);
  Bytes image(18);
  EXPECT_EQ(dataset->read(1, image), 0);
  EXPECT_EQ(image, Bytes(pixels.begin() + 18, pixels.end()));

  folder.write(name, idx_colour_images(2, {.height = 2, .width = 3, .channels = 0}, {}));
  expect_parts(error_of<DataError>(folder.path()), {name, "2 images", "2x3x0"});
  folder.write(name, idx_images(2, 3, 6, pixels));
  expect_parts(error_of<DataError>(folder.path()), {name, "0x00000803", "0x00000804"});
  folder.write(name, idx_colour_images(2, kShape, Bytes(35)));
  EXPECT_EQ(byte_in(error_of<DataError>(folder.path())), 20 + 35);  // the header has 20 bytes
}

TEST(Idx, SplitsAreSeparateFiles) {
  const Files files;
  const TemporaryFolder folder;
  folder.write(kImages, files.images);
  folder.write(kLabels, files.labels);
  folder.write("t10k-images-idx3-ubyte", idx_images(1, 2, 3, Bytes(6, 7)));
  folder.write("t10k-labels-idx1-ubyte", idx_labels({2}));
  const std::unique_ptr<Dataset> test = open_idx(folder.path(), Split::test);
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(test->classes(), 3);  // from the test labels
  expect_the_three_images(*open_idx(folder.path(), Split::train));
}

TEST(Idx, EveryTruncationIsFound) {
  const Files files;
  for (const bool zipped : {false, true}) {
    for (const bool images : {true, false}) {
      const TemporaryFolder folder;
      const std::string name = std::string(images ? kImages : kLabels) + (zipped ? ".gz" : "");
      const Bytes& plain = images ? files.images : files.labels;
      const Bytes whole = zipped ? gzip(plain) : plain;
      for (std::size_t length = 0; length < whole.size(); ++length) {
        const std::string error = data_error(folder, name, {whole.begin(), whole.begin() + length});
        expect_parts(error, {(folder.path() / name).string()});
        EXPECT_GE(byte_in(error), 0) << length << ": " << error;
        if (!zipped) {
          EXPECT_EQ(byte_in(error), static_cast<std::int64_t>(length)) << error;
        }
      }
    }
  }
}

TEST(Idx, EveryFlippedBitOfAGzipFileIsFoundOrHarmless) {
  const Files files;
  const Bytes whole = gzip(files.images);
  const TemporaryFolder folder;
  folder.write(kLabels, files.labels);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    Bytes broken = whole;
    broken[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    folder.write(std::string(kImages) + ".gz", broken);
    try {
      expect_the_three_images(
          *open_idx(folder.path(), Split::train));  // for example, in the header's time stamp
    } catch (const DataError& error) {
      expect_parts(error.what(), {std::string(kImages) + ".gz"});
    }
  }
}

TEST(Idx, BytesAfterTheEndAreFound) {
  const Files files;
  const TemporaryFolder folder;
  const auto with_garbage = [](Bytes bytes) {
    bytes.push_back(0x55);
    return bytes;
  };
  EXPECT_EQ(byte_in(data_error(folder, kImages, with_garbage(files.images))), 34);
  EXPECT_EQ(byte_in(data_error(folder, kLabels, with_garbage(files.labels))), 11);
  const std::string zipped = std::string(kImages) + ".gz";
  EXPECT_EQ(byte_in(data_error(folder, zipped, gzip(with_garbage(files.images)))), 34);
  const std::string after_stream = data_error(folder, zipped, with_garbage(gzip(files.images)));
  expect_parts(after_stream, {zipped});
  EXPECT_EQ(byte_in(after_stream), 34) << after_stream;
}

TEST(Idx, AWrongChecksumIsFound) {
  const Files files;
  const TemporaryFolder folder;
  const std::string zipped = std::string(kImages) + ".gz";
  Bytes broken = gzip(files.images);
  broken[broken.size() - 8] ^= 1;  // the trailer: CRC-32, then the length
  const std::string error = data_error(folder, zipped, broken);
  expect_parts(error, {zipped, "incorrect data check"});  // zlib's text
}

TEST(Idx, AWrongHeaderIsFoundAtItsOffset) {
  const Files files;
  const TemporaryFolder folder;
  const auto set = [](Bytes bytes, std::size_t at, std::initializer_list<std::uint8_t> word) {
    std::copy(word.begin(), word.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return bytes;
  };
  const struct {
    const char* name;
    Bytes bytes;
    std::int64_t byte;
    std::vector<std::string> parts;
  } cases[] = {
      {kImages, files.labels, 0, {kImages, "0x00000801", "0x00000803"}},
      {kLabels, files.images, 0, {kLabels, "0x00000803", "0x00000801"}},
      {kImages, set(files.images, 2, {0x0d}), 0, {kImages, "0x00000d03"}},  // 32-bit floats
      {kImages, set(files.images, 4, {0, 0, 0, 0}), 4, {kImages, "0 images", "2x3"}},
      {kImages, set(files.images, 8, {0, 0, 0, 0}), 4, {kImages, "3 images", "0x3"}},
      {kImages, set(files.images, 12, {0xff, 0xff, 0xff, 0xff}), 4, {kImages, "3 images", "2x4294967295"}},
      {kImages, idx_images(0xffffffff, 0x10000, 0x10000, {}), 4, {"4294967295 images", "65536x65536"}},
      {kImages, idx_images(0xffffffff, 1, 1, {}), 16, {kImages}},  // the pixels are missing
      {kImages, idx_images(2, 2, 3, Bytes(12)), 4, {kLabels, "3 labels", kImages, "2 images"}},
      {kLabels, idx_labels({1, 2, 3, 4}), 4, {kLabels, "4 labels", kImages, "3 images"}},
  };
  for (const auto& c : cases) {
    const std::string error = data_error(folder, c.name, c.bytes);
    EXPECT_EQ(byte_in(error), c.byte) << error;
    expect_parts(error, c.parts);
    expect_parts(error, {folder.path().string()});
  }
}

TEST(Idx, AMissingFileNamesTheExpectedFilesAndPackage) {
  const TemporaryFolder folder;
  std::string error = error_of<IoError>(folder.path());
  expect_parts(error,
               {(folder.path() / kImages).string(), "apt-get install dataset-fashion-mnist", "data.path"});
  folder.write(kImages, Files().images);
  expect_parts(error_of<IoError>(folder.path()), {"/train-labels-idx1-ubyte"});
  expect_parts(error_of<IoError>(folder.path(), Split::test), {"/t10k-images-idx3-ubyte"});
  error = error_of<IoError>("/usr/share/datasets/no-such-dataset");
  expect_parts(error, {"/usr/share/datasets/no-such-dataset/train-images-idx3-ubyte",
                       "apt-get install dataset-fashion-mnist"});
}

TEST(Idx, AFileThatCannotBeReadIsAnIoError) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / kImages);
  folder.write(kLabels, Files().labels);
  const std::string error = error_of<IoError>(folder.path());
  expect_parts(error, {(folder.path() / kImages).string()});
  EXPECT_EQ(error.find("data.path"), std::string::npos) << "as for a missing file: " << error;
}

TEST(Idx, ReadChecksItsArguments) {
  const Files files;
  const TemporaryFolder folder;
  folder.write(kImages, files.images);
  folder.write(kLabels, files.labels);
  const std::unique_ptr<Dataset> dataset = open_idx(folder.path(), Split::train);
  Bytes image(6);
  EXPECT_THROW(dataset->read(3, image), Error);
  EXPECT_THROW(dataset->read(-1, image), Error);
  Bytes small(5);
  EXPECT_THROW(dataset->read(0, small), Error);
}

TEST(OpenDataset, OpensIdxAndNamesTheFormatsItKnows) {
  const Files files;
  const TemporaryFolder folder;
  folder.write(kImages, files.images);
  folder.write(kLabels, files.labels);
  expect_the_three_images(*open_dataset({.format = "idx", .path = folder.path()}, Split::train));
  expect_parts(message_of<ConfigError>(
                   [&] { open_dataset({.format = "parquet", .path = folder.path()}, Split::train); }),
               {"\"parquet\"", "idx, ", "image_folder"});
}

class FashionMnist : public testing::TestWithParam<Split> {};

TEST_P(FashionMnist, HasTheSameNumberOfSamplesInEveryClass) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "needs the Debian package dataset-fashion-mnist";
  const std::unique_ptr<Dataset> dataset = open_idx(folder, GetParam());
  const std::int64_t expected = GetParam() == Split::train ? 60'000 : 10'000;
  EXPECT_EQ(dataset->size(), expected);
  EXPECT_EQ(dataset->image_shape(), (ImageShape{28, 28, 1}));
  ASSERT_EQ(dataset->classes(), 10);
  std::vector<std::int64_t> per_class(10);
  std::uint64_t brightness = 0;
  Bytes image(28 * 28);
  for (std::int64_t i = 0; i < expected; ++i) {
    ++per_class[static_cast<std::size_t>(dataset->read(i, image))];
    brightness = std::accumulate(image.begin(), image.end(), brightness);
  }
  EXPECT_EQ(per_class, std::vector<std::int64_t>(10, expected / 10));
  // The published mean is 0.2860 of full brightness.
  EXPECT_NEAR(static_cast<double>(brightness) / static_cast<double>(expected * 28 * 28) / 255.0, 0.286,
              0.002);
}

INSTANTIATE_TEST_SUITE_P(Splits, FashionMnist, testing::Values(Split::train, Split::test),
                         [](const auto& suite) { return suite.param == Split::train ? "train" : "test"; });

}  // namespace
}  // namespace lockstep
