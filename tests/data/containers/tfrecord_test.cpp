// SPDX-License-Identifier: Apache-2.0
#include "data/containers/tfrecord.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/images/png.h"
#include "tests/data/containers/container_files.h"
#include "tests/data/idx_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The features of ImageNet's scripts, among others.
std::string image_example(const Bytes& image, std::uint64_t label) {
  return example(number_feature("image/height", 7) + bytes_feature("image/encoded", image) +
                 bytes_feature("image/class/text", "cat") + number_feature("image/class/label", label));
}

TEST(TfRecord, ReadsImagesAndLabelsOfAllShardsInOrder) {
  const TemporaryFolder folder;
  folder.write("train-00001-of-00002", as_bytes(image_example(red_jpeg(30), 2)));
  folder.write("train-00000-of-00002",
               as_bytes(image_example(red_jpeg(10), 1) + image_example(red_jpeg(20), 5)));
  folder.write("validation-00000-of-00001", as_bytes(image_example(red_jpeg(40), 3)));
  folder.write("notes.txt", {1});
  const auto train =
      open_dataset({.format = "tfrecord", .path = folder.path(), .synthetic = {}}, Split::train);
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->image_shape(), kColour);
  EXPECT_EQ(train->classes(), 6);
  EXPECT_EQ(train->class_counts(), (std::vector<std::int64_t>{0, 1, 1, 0, 0, 1}));
  expect_red(*train, 0, 10, 1);
  expect_red(*train, 1, 20, 5);
  expect_red(*train, 2, 30, 2);
  Bytes stored;
  EXPECT_EQ(train->read_stored(1, stored), 5);
  EXPECT_EQ(stored, red_jpeg(20));
  const auto test = open_tfrecord({.path = folder.path()}, Split::test);
  ASSERT_EQ(test->size(), 1);
  EXPECT_EQ(test->classes(), 6);
  expect_red(*test, 0, 40, 3);
}

TEST(TfRecord, ReadsTheNamesOfTensorflowDatasetsAndPngs) {
  const TemporaryFolder folder;
  const Bytes png = encode_png({5, 6, 1}, noise({5, 6, 1}, 1));
  const std::string record =
      example(number_feature("label", 1, Numbers::single) + bytes_feature("image", png));
  folder.write("mnist-train.tfrecord-00000-of-00001", as_bytes(record));
  folder.write("mnist-test.tfrecord-00000-of-00001", as_bytes(record));
  const auto train = open_tfrecord({.path = folder.path()}, Split::train);
  EXPECT_EQ(train->image_shape(), (ImageShape{5, 6, 1}));
  EXPECT_EQ(read(*train, 0), noise({5, 6, 1}, 1));
}

// A file from Kaggle: another file ending and another name of the label.
TEST(TfRecord, FeaturesMayHaveOtherNames) {
  const TemporaryFolder folder;
  folder.write("00-train.tfrec",
               as_bytes(example(bytes_feature("image", red_jpeg(10)) + number_feature("class", 3) +
                                bytes_feature("photo", red_jpeg(99)) + number_feature("species", 5))));
  DatasetOptions options{.path = folder.path()};
  expect_red(*open_tfrecord(options, Split::train), 0, 10, 3);
  options.tfrecord = {.image = "photo", .label = "species"};
  expect_red(*open_tfrecord(options, Split::train), 0, 99, 5);
  options.tfrecord = {};
  expect_red(*open_tfrecord(options, Split::train), 0, 10, 3);  // the index of other features is not used
  options.tfrecord.label = "kind";
  expect_parts(message_of<DataError>([&] { open_tfrecord(options, Split::train); }),
               {"\"kind\"", "image, class, photo, species", "data.tfrecord.label"});
}

std::int64_t unpacked_files(const TemporaryFolder& folder) {
  const auto is_unpacked = [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".lsunpacked";
  };
  return std::count_if(fs::directory_iterator(folder.path()), fs::directory_iterator(), is_unpacked);
}

TEST(TfRecord, GzipFilesAreUnpackedOnce) {
  const TemporaryFolder folder;
  const Bytes both = as_bytes(image_example(red_jpeg(10), 1) + image_example(red_jpeg(20), 0));
  folder.write("train.tfrecord.gz", gzip(both));
  for (int i = 0; i < 2; ++i) {
    const auto train = open_tfrecord({.path = folder.path()}, Split::train);
    ASSERT_EQ(train->size(), 2);
    expect_red(*train, 1, 20, 0);
    EXPECT_EQ(unpacked_files(folder), 1);
  }
  Bytes damaged = gzip(both);
  damaged.resize(damaged.size() / 2);
  folder.write("train.tfrecord.gz", damaged);
  expect_parts(message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::train); }),
               {"train.tfrecord.gz", "gzip"});
  // The plain file is used if both exist, as after gunzip -k.
  folder.write("train.tfrecord", both);
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_tfrecord({.path = folder.path()}, Split::train)->size(), 2);
  expect_parts(testing::internal::GetCapturedStderr(), {"train.tfrecord.gz"});
}

// The first bytes of a gzip file are 1f 8b 08; those of a TFRecord file are the length of its first record.
TEST(TfRecord, AFileWhoseFirstLengthLooksLikeGzipIsNotUnpacked) {
  const auto padded = [](std::size_t bytes) {
    return example(bytes_feature("image", red_jpeg(10)) + number_feature("label", 1) +
                   bytes_feature("pad", std::string(bytes, 'x')));
  };
  constexpr std::size_t kFrame = 8 + 4 + 4, kSomePad = 20'000;
  const std::size_t beside_pad = padded(kSomePad).size() - kSomePad;
  for (const std::size_t length : {std::size_t{0x8b1f}, std::size_t{0x88b1f}}) {
    const std::string first = padded(length + kFrame - beside_pad);
    ASSERT_EQ(first.size(), length + kFrame);
    ASSERT_TRUE(first.starts_with("\x1f\x8b"));
    const TemporaryFolder folder;
    folder.write("train.tfrecord", as_bytes(first + image_example(red_jpeg(20), 0)));
    const auto train = open_tfrecord({.path = folder.path()}, Split::train);
    ASSERT_EQ(train->size(), 2);
    expect_red(*train, 0, 10, 1);
    expect_red(*train, 1, 20, 0);
    EXPECT_EQ(unpacked_files(folder), 0);
  }
}

TEST(TfRecord, MissingAndEmptyShardsAndTwoSetsAreReported) {
  const TemporaryFolder folder;
  const auto warnings = [&](Split split) {
    testing::internal::CaptureStderr();
    open_tfrecord({.path = folder.path()}, split);
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  const Bytes one = as_bytes(image_example(red_jpeg(10), 1));
  for (const char* name : {"train-00001-of-00004", "train-00003-of-00004", "test-00000-of-00003.tfrecord"})
    folder.write(name, one);
  const std::string of_train = warnings(Split::train), of_test = warnings(Split::test);
  expect_parts(of_train, {"train-", " 2 ", " 4 "});
  EXPECT_EQ(std::ranges::count(of_train, '\n'), 1) << of_train;
  expect_parts(of_test, {"test-", " 1 ", " 3 "});
  EXPECT_EQ(std::ranges::count(of_test, '\n'), 1) << of_test;
  for (const char* name : {"train-00000-of-00004", "train-00002-of-00004"}) folder.write(name, one);
  EXPECT_EQ(warnings(Split::train), "");
  for (const char* name : {"train-00000-of-00002", "train-00001-of-00002"}) folder.write(name, one);
  const std::string of_both = warnings(Split::train);
  expect_parts(of_both, {"train-*-of-00002", "train-*-of-00004"});
  EXPECT_EQ(std::ranges::count(of_both, '\n'), 1) << of_both;
  folder.write("train-00001-of-00002", Bytes());
  expect_parts(warnings(Split::train), {"train-00001-of-00002: "});
}

TEST(TfRecord, SplitsAreWholeWordsInFileNames) {
  const TemporaryFolder folder;
  const Bytes one = as_bytes(image_example(red_jpeg(10), 1));
  folder.write("constrained.tfrecord", one);  // the name contains "train" but not as a word
  folder.write("birds-Train-0.tfrecord", one);
  folder.write("contest.tfrecord", one);
  folder.write("birds-Valid-0.tfrecord", one);
  EXPECT_EQ(open_tfrecord({.path = folder.path()}, Split::train)->size(), 1);
  EXPECT_EQ(open_tfrecord({.path = folder.path()}, Split::test)->size(), 1);
  folder.write("train_and_test.tfrecord", one);
  expect_parts(message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::train); }),
               {"train_and_test.tfrecord"});
}

TEST(TfRecord, CopiesAndSideFilesAreSkippedAndNamed) {
  const TemporaryFolder folder;
  const Bytes one = as_bytes(image_example(red_jpeg(10), 1));
  // Names of samples.
  for (const char* name : {"train.tfrecord", "train.tfrecord-00001-of-00004", "train.tfrecord.2",
                           "train.tfrecord.part3", "train-00003-of-00004"})
    folder.write(name, one);
  // DALI's index, and a copy.
  folder.write("train.tfrecord.idx", as_bytes("0 100\n"));
  folder.write("train.tfrecord~", one);
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_tfrecord({.path = folder.path()}, Split::train)->size(), 5);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string named = lines_naming(log, "train.tfrecord.idx", "train.tfrecord~");
  EXPECT_EQ(std::ranges::count(named, '\n'), 1) << log;

  folder.write("test.tfrecord.bak", one);
  expect_parts(message_of<IoError>([&] { open_tfrecord({.path = folder.path()}, Split::test); }),
               {folder.path().string(), "test.tfrecord.bak"});
}

TEST(TfRecord, ChannelsFollowTheMajorityOfTrainingImages) {
  const TemporaryFolder folder;
  folder.write("train.tfrecord", as_bytes(image_example(flat_jpeg({7}), 0) + image_example(red_jpeg(10), 1) +
                                          image_example(red_jpeg(20), 1)));
  EXPECT_EQ(open_tfrecord({.path = folder.path()}, Split::train)->image_shape(), kColour);
}

TEST(TfRecord, TheIndexIsReusedUntilTheFileChanges) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "train.tfrecord", index = file.string() + ".lsindex";
  // The number of images, and whether the whole file was read, which a log line with its name reports.
  const auto opens = [&] {
    testing::internal::CaptureStderr();
    const auto train = open_tfrecord({.path = folder.path()}, Split::train);
    const std::string log = testing::internal::GetCapturedStderr();
    return std::pair(train->size(), log.find(file.string()) != std::string::npos);
  };
  folder.write("train.tfrecord", as_bytes(image_example(red_jpeg(10), 1)));
  EXPECT_EQ(opens(), std::pair(std::int64_t{1}, true));
  EXPECT_TRUE(fs::exists(index));
  folder.write("train.tfrecord.lsindex.partial-12ab", {1});  // left by a killed process
  EXPECT_EQ(opens(), std::pair(std::int64_t{1}, false));
  folder.write("train.tfrecord", as_bytes(image_example(red_jpeg(10), 1) + image_example(red_jpeg(20), 0)));
  EXPECT_EQ(opens(), std::pair(std::int64_t{2}, true));
  // An index with any damaged byte is made again.
  Bytes bytes(static_cast<std::size_t>(fs::file_size(index)));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::FILE* read = std::fopen(index.c_str(), "rb");
    ASSERT_EQ(std::fread(bytes.data(), 1, bytes.size(), read), bytes.size());
    std::fclose(read);
    bytes[at] ^= 1;
    folder.write("train.tfrecord.lsindex", bytes);
    EXPECT_EQ(opens(), std::pair(std::int64_t{2}, true)) << at;
    bytes[at] ^= 1;
  }
  EXPECT_EQ(opens(), std::pair(std::int64_t{2}, false));
  // An index of version 3 may list records with several images, which the indexer refuses.
  constexpr std::size_t kVersion = 7, kHeaderCrc = 44;
  bytes[kVersion] = '3';
  const std::uint32_t crc = crc32c({reinterpret_cast<const char*>(bytes.data()), kHeaderCrc});
  std::memcpy(bytes.data() + kHeaderCrc, &crc, sizeof(crc));
  folder.write("train.tfrecord.lsindex", bytes);
  EXPECT_EQ(opens(), std::pair(std::int64_t{2}, true));
}

TEST(TfRecord, AnImageThatChangesAfterIndexingIsNamed) {
  const TemporaryFolder folder;
  Bytes bytes = as_bytes(image_example(red_jpeg(10), 1) + image_example(red_jpeg(20), 0));
  folder.write("train.tfrecord", bytes);
  const auto train = open_tfrecord({.path = folder.path()}, Split::train);
  const Bytes image = red_jpeg(20);
  const auto at = std::search(bytes.begin(), bytes.end(), image.begin(), image.end());
  at[60] ^= 1;
  folder.write("train.tfrecord", bytes);
  read(*train, 0);
  expect_parts(message_of<DataError>([&] { read(*train, 1); }),
               {"train.tfrecord", fmt::format("byte {}", at - bytes.begin())});
}

TEST(TfRecord, EveryFlippedBitAndEveryTruncationIsNamed) {
  const std::string record = image_example(red_jpeg(10), 1);
  const std::string both = record + record;
  const auto complaint = [](const std::string& text) {
    const TemporaryFolder folder;
    folder.write("train.tfrecord", as_bytes(text));
    return message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::train); });
  };
  const auto expect_record_of = [&](std::size_t byte, const std::string& message) {
    SCOPED_TRACE(byte);
    const std::size_t begin = byte < record.size() ? 0 : record.size();
    expect_parts(message, {"train.tfrecord", fmt::format("byte {}", begin)});
  };
  EXPECT_EQ(complaint(both), "");
  for (std::size_t at = 0; at < both.size(); at += 3) {
    std::string flipped = both;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    expect_record_of(at, complaint(flipped));
  }
  for (std::size_t length = 1; length < both.size(); length += 3) {
    if (length == record.size()) continue;
    expect_record_of(length, complaint(both.substr(0, length)));
  }
}

TEST(TfRecord, RecordsOfAnotherFormAreRefusedWithTheMissingFeature) {
  const auto complaint = [](const std::string& text) {
    const TemporaryFolder folder;
    folder.write("train.tfrecord", as_bytes(text));
    return message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::train); });
  };
  const std::string image = bytes_feature("image/encoded", red_jpeg(1));
  expect_parts(complaint(example(image)),
               {"byte 0", "\"image/class/label\"", "\"label\"", "data.tfrecord.label"});
  expect_parts(complaint(example(number_feature("label", 1))),
               {"byte 0", "\"image/encoded\"", "\"image\"", "data.tfrecord.image"});
  expect_parts(complaint(example(image + bytes_feature("label", "cat"))),
               {"byte 0", "\"image/class/label\"", "data.tfrecord.label"});
  // One-hot vectors, whose first number is 0 or 1.
  for (const std::string& list : {field(1, varint(0) + varint(0) + varint(1)),
                                  varint(1 << 3) + varint(0) + varint(1 << 3) + varint(1)}) {
    const std::string label = field(1, field(1, "label") + field(2, field(3, list)));
    expect_parts(complaint(example(image + label)),
                 {"byte 0", "\"label\"", " numbers", "data.tfrecord.label"});
  }
  const std::string frame = field(1, std::string(1, 'x'));
  expect_parts(complaint(example(number_feature("label", 1) +
                                 field(1, field(1, "image") + field(2, field(1, frame + frame))))),
               {"byte 0", "\"image\"", " 2 ", "data.tfrecord.image"});
  for (const std::string& record : {framed("\xff\xff\xff"), framed(field(1, "\x0a\x7fx"))}) {
    const std::string message = complaint(record);
    expect_parts(message, {"byte 0", "tf.Example"});
    EXPECT_EQ(message.find("image/encoded"), std::string::npos)
        << "no feature names for a record without features: " << message;
  }
  expect_parts(complaint(example(image + number_feature("label", ~std::uint64_t{0}))), {"label -1"});
  expect_parts(complaint(example(image + number_feature("label", 1 << 20))), {"byte 0", "label 1048576"});
  expect_parts(complaint(std::string(40, 'x')), {"byte 0", "TFRecord"});
  const std::string empty = complaint("");
  expect_parts(empty, {"train.tfrecord"});
  EXPECT_EQ(empty.find("byte"), std::string::npos) << "an empty file has no damaged byte: " << empty;

  const TemporaryFolder folder;
  expect_parts(message_of<IoError>([&] { open_tfrecord({.path = folder.path()}, Split::train); }),
               {folder.path().string(), "train-00000-of-00010"});
  folder.write("train.tfrecord", as_bytes(image_example(red_jpeg(1), 1)));
  folder.write("test.tfrecord", as_bytes(image_example(red_jpeg(1), 2)));
  expect_parts(message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::test); }),
               {"test.tfrecord", "label 2"});
}

}  // namespace
}  // namespace lockstep
