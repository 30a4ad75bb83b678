// SPDX-License-Identifier: Apache-2.0
//
// Formats with many images in one file: TFRecord and WebDataset.
#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <regex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "data/containers/tfrecord.h"
#include "data/containers/unpacked_file.h"
#include "data/containers/webdataset.h"
#include "data/formats/readable_file.h"
#include "data/images/png.h"
#include "data/records/pack.h"
#include "tests/data/idx_files.h"
#include "tests/data/jpeg_files.h"
#include "tests/failing_call.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// ---- TFRecord: a minimal writer of protocol buffers and frames

std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}
std::string field(int number, const std::string& text) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(text.size()) + text;
}
std::string bytes_feature(const std::string& key, const std::string& value) {
  return field(1, field(1, key) + field(2, field(1, field(1, value))));
}
enum class Numbers { packed, single };
std::string number_feature(const std::string& key, std::uint64_t value, Numbers how = Numbers::packed) {
  const std::string list = how == Numbers::packed ? field(1, varint(value)) : varint(1 << 3) + varint(value);
  return field(1, field(1, key) + field(2, field(3, list)));
}
std::string framed(const std::string& data) {
  const std::uint64_t length = data.size();
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  const auto add_crc = [&](std::string_view of) {
    const std::uint32_t crc = masked_crc32c(of);
    frame.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  };
  add_crc(std::string(frame));
  frame += data;
  add_crc(data);
  return frame;
}
std::string example(const std::string& features) { return framed(field(1, features)); }
// The features of ImageNet's scripts, among others.
std::string image_example(const Bytes& image, std::uint64_t label) {
  return example(number_feature("image/height", 7) + bytes_feature("image/encoded", text_of(image)) +
                 bytes_feature("image/class/text", "cat") + number_feature("image/class/label", label));
}

Bytes colours(std::uint8_t red) { return flat_jpeg({red, 90, 30}); }

Bytes as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

void expect_red(const Dataset& dataset, std::int64_t index, int red, std::int32_t label) {
  Bytes image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  EXPECT_EQ(dataset.read(index, image), label);
  EXPECT_EQ(dataset.label(index), label);
  EXPECT_NEAR(image[0], red, 3);
}

TEST(TfRecord, ReadsImagesAndLabelsOfAllShardsInOrder) {
  const TemporaryFolder folder;
  folder.write("train-00001-of-00002", as_bytes(image_example(colours(30), 2)));
  folder.write("train-00000-of-00002",
               as_bytes(image_example(colours(10), 1) + image_example(colours(20), 5)));
  folder.write("validation-00000-of-00001", as_bytes(image_example(colours(40), 3)));
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
  EXPECT_EQ(stored, colours(20));
  const auto test = open_tfrecord({.path = folder.path()}, Split::test);
  ASSERT_EQ(test->size(), 1);
  EXPECT_EQ(test->classes(), 6);
  expect_red(*test, 0, 40, 3);
}

TEST(TfRecord, ReadsTheNamesOfTensorflowDatasetsAndPngs) {
  const TemporaryFolder folder;
  const Bytes png = encode_png({5, 6, 1}, noise({5, 6, 1}, 1));
  const std::string record =
      example(number_feature("label", 1, Numbers::single) + bytes_feature("image", text_of(png)));
  folder.write("mnist-train.tfrecord-00000-of-00001", as_bytes(record));
  folder.write("mnist-test.tfrecord-00000-of-00001", as_bytes(record));
  const auto train = open_tfrecord({.path = folder.path()}, Split::train);
  EXPECT_EQ(train->image_shape(), (ImageShape{5, 6, 1}));
  EXPECT_EQ(read(*train, 0), noise({5, 6, 1}, 1));
}

// A file from Kaggle: another file ending and another name of the label.
TEST(TfRecord, FeaturesMayHaveOtherNames) {
  const TemporaryFolder folder;
  const std::string image = text_of(colours(10));
  folder.write("00-train.tfrec", as_bytes(example(bytes_feature("image", image) + number_feature("class", 3) +
                                                  bytes_feature("photo", text_of(colours(99))) +
                                                  number_feature("species", 5))));
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

TEST(TfRecord, GzipFilesAreUnpackedOnce) {
  const TemporaryFolder folder;
  const auto unpacked = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (entry.path().extension() == ".lsunpacked") names.push_back(entry.path().filename());
    return names;
  };
  const Bytes both = as_bytes(image_example(colours(10), 1) + image_example(colours(20), 0));
  folder.write("train.tfrecord.gz", gzip(both));
  for (int i = 0; i < 2; ++i) {
    const auto train = open_tfrecord({.path = folder.path()}, Split::train);
    ASSERT_EQ(train->size(), 2);
    expect_red(*train, 1, 20, 0);
    EXPECT_EQ(unpacked().size(), 1u);
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

TEST(TfRecord, MissingShardsAreReported) {
  const TemporaryFolder folder;
  const auto warnings = [&](Split split) {
    testing::internal::CaptureStderr();
    open_tfrecord({.path = folder.path()}, split);
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  const Bytes one = as_bytes(image_example(colours(10), 1));
  for (const char* name : {"train-00001-of-00004", "train-00003-of-00004", "test-00000-of-00003.tfrecord"})
    folder.write(name, one);
  const std::string of_train = warnings(Split::train), of_test = warnings(Split::test);
  expect_parts(of_train, {"train-", " 2 ", " 4 "});
  EXPECT_EQ(std::ranges::count(of_train, '\n'), 1) << of_train;
  expect_parts(of_test, {"test-", " 1 ", " 3 "});
  EXPECT_EQ(std::ranges::count(of_test, '\n'), 1) << of_test;
  for (const char* name : {"train-00000-of-00004", "train-00002-of-00004"}) folder.write(name, one);
  EXPECT_EQ(warnings(Split::train), "");
}

// Each rank opens the same files at the same time.
TEST(UnpackedFile, OneOfManyCallersUnpacks) {
  constexpr std::size_t kCallers = 8, kBytes = std::size_t{4} << 20;
  const TemporaryFolder folder;
  const fs::path packed = folder.path() / "train.tar.gz";
  folder.write("train.tar.gz", gzip(Bytes(kBytes, 7)));
  std::vector<std::optional<ReadableFile>> opened(kCallers);
  std::barrier begin(kCallers);
  {
    std::vector<std::jthread> callers;
    for (std::size_t i = 0; i < kCallers; ++i)
      callers.emplace_back([&, i] {
        begin.arrive_and_wait();
        opened[i].emplace(unpacked_file(packed));
      });
  }
  std::set<ino_t> files;
  for (const std::optional<ReadableFile>& file : opened) {
    EXPECT_EQ(file->bytes(), kBytes);
    struct stat status = {};
    ASSERT_EQ(fstat(file->descriptor(), &status), 0);
    files.insert(status.st_ino);
  }
  EXPECT_EQ(files.size(), 1u) << "several callers unpacked the file";
}

TEST(UnpackedFile, AFailedReadIsNotDamage) {
  const TemporaryFolder folder;
  folder.write("train.tar.gz", gzip(Bytes(1000, 7)));
  bool broken = false;
  int code = exit_code::done;
  std::string message;
  std::thread([&] {
    broken = let_call_fail(SYS_read, EIO);
    if (!broken) return;
    try {
      unpacked_file(folder.path() / "train.tar.gz");
    } catch (const Error& error) {
      code = error.exit_code();
      message = error.what();
    }
  }).join();
  if (!broken) GTEST_SKIP() << "needs seccomp filters";
  EXPECT_EQ(code, exit_code::io) << message;
  expect_parts(message, {"train.tar.gz", "Input/output error"});
}

TEST(TfRecord, SplitsAreWholeWordsInFileNames) {
  const TemporaryFolder folder;
  const Bytes one = as_bytes(image_example(colours(10), 1));
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
  const Bytes one = as_bytes(image_example(colours(10), 1));
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
  folder.write("train.tfrecord", as_bytes(image_example(flat_jpeg({7}), 0) + image_example(colours(10), 1) +
                                          image_example(colours(20), 1)));
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
  folder.write("train.tfrecord", as_bytes(image_example(colours(10), 1)));
  EXPECT_EQ(opens(), std::pair(std::int64_t{1}, true));
  EXPECT_TRUE(fs::exists(index));
  folder.write("train.tfrecord.lsindex.partial-12ab", {1});  // left by a killed process
  EXPECT_EQ(opens(), std::pair(std::int64_t{1}, false));
  folder.write("train.tfrecord", as_bytes(image_example(colours(10), 1) + image_example(colours(20), 0)));
  EXPECT_EQ(opens(), std::pair(std::int64_t{2}, true));
  // An index with any damaged byte is made again.
  for (std::uintmax_t at = 0; at < fs::file_size(index); ++at) {
    Bytes bytes(static_cast<std::size_t>(fs::file_size(index)));
    std::FILE* read = std::fopen(index.c_str(), "rb");
    ASSERT_EQ(std::fread(bytes.data(), 1, bytes.size(), read), bytes.size());
    std::fclose(read);
    bytes[static_cast<std::size_t>(at)] ^= 1;
    folder.write("train.tfrecord.lsindex", bytes);
    EXPECT_EQ(opens(), std::pair(std::int64_t{2}, true)) << at;
  }
  EXPECT_EQ(opens(), std::pair(std::int64_t{2}, false));
}

TEST(TfRecord, AnImageThatChangesAfterIndexingIsNamed) {
  const TemporaryFolder folder;
  Bytes bytes = as_bytes(image_example(colours(10), 1) + image_example(colours(20), 0));
  folder.write("train.tfrecord", bytes);
  const auto train = open_tfrecord({.path = folder.path()}, Split::train);
  const Bytes image = colours(20);
  const auto at = std::search(bytes.begin(), bytes.end(), image.begin(), image.end());
  at[60] ^= 1;
  folder.write("train.tfrecord", bytes);
  read(*train, 0);
  expect_parts(message_of<DataError>([&] { read(*train, 1); }),
               {"train.tfrecord", fmt::format("byte {}", at - bytes.begin())});
}

TEST(TfRecord, EveryFlippedBitAndEveryTruncationIsNamed) {
  const std::string record = image_example(colours(10), 1);
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
  const std::string image = bytes_feature("image/encoded", text_of(colours(1)));
  expect_parts(complaint(example(image)),
               {"byte 0", "\"image/class/label\"", "\"label\"", "data.tfrecord.label"});
  expect_parts(complaint(example(number_feature("label", 1))),
               {"byte 0", "\"image/encoded\"", "\"image\"", "data.tfrecord.image"});
  expect_parts(complaint(example(image + bytes_feature("label", "cat"))),
               {"byte 0", "\"image/class/label\"", "data.tfrecord.label"});
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
  folder.write("train.tfrecord", as_bytes(image_example(colours(1), 1)));
  folder.write("test.tfrecord", as_bytes(image_example(colours(1), 2)));
  expect_parts(message_of<DataError>([&] { open_tfrecord({.path = folder.path()}, Split::test); }),
               {"test.tfrecord", "label 2"});
}

// ---- WebDataset: ustar members

std::string member(const std::string& name, const std::string& data, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, name.substr(0, 100));
  put(124, fmt::format("{:011o}", data.size()));
  header[156] = type;
  put(257, std::string("ustar\0", 6) + "00");
  put(148, std::string(8, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  std::string padded = data;
  padded.resize((data.size() + 511) / 512 * 512);
  return header + padded;
}
std::string sample(const std::string& key, const Bytes& image, const std::string& label) {
  return member(key + ".jpg", text_of(image)) + member(key + ".cls", label);
}
const std::string kEnd(1024, '\0');

TEST(WebDataset, ReadsImagesAndLabelsOfAllShardsInOrder) {
  const TemporaryFolder folder;
  folder.write(
      "set-train-000000.tar",
      as_bytes(member("./", "", '5') + sample("./a/0001", colours(10), "1\n") + member("./a/0002.cls", "0") +
               member("./a/0002.json", "{}") + member("./a/0002.JPG", text_of(colours(20))) + kEnd));
  folder.write("set-train-000001.tar",
               as_bytes(sample("b.c/x", colours(30), " 2 ") + member("README", "hello")));
  folder.write("set-val-000000.tar",
               as_bytes(sample("v", colours(40), "1") + kEnd + "anything after the end"));
  const auto train =
      open_dataset({.format = "webdataset", .path = folder.path(), .synthetic = {}}, Split::train);
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->classes(), 3);
  expect_red(*train, 0, 10, 1);
  expect_red(*train, 1, 20, 0);
  expect_red(*train, 2, 30, 2);
  const auto test = open_webdataset({.path = folder.path()}, Split::test);
  ASSERT_EQ(test->size(), 1);
  expect_red(*test, 0, 40, 1);
}

// As tar of macOS writes them: attributes of each file, in a hidden member before it.
TEST(WebDataset, HiddenMembersAreSkipped) {
  const TemporaryFolder folder;
  const auto with_attributes = [](const std::string& in, const std::string& name, const std::string& data) {
    return member(in + "._" + name, "Mac OS X") + member(in + name, data);
  };
  folder.write("train.tar", as_bytes(with_attributes("./", "0001.cls", "1") +
                                     with_attributes("./", "0001.jpg", text_of(colours(10))) +
                                     with_attributes("", "0002.jpg", text_of(colours(20))) +
                                     with_attributes("", "0002.cls", "0") + member(".DS_Store", "x") +
                                     sample(".cache/0003", colours(30), "2") + kEnd));
  const auto train = open_webdataset({.path = folder.path()}, Split::train);
  ASSERT_EQ(train->size(), 3);
  expect_red(*train, 0, 10, 1);
  expect_red(*train, 1, 20, 0);
  expect_red(*train, 2, 30, 2);  // in a hidden folder, as in "tar c ~/.cache/images"
}

TEST(WebDataset, TheFirstOfSeveralImagesIsUsedWithAWarning) {
  const TemporaryFolder folder;
  const std::string other = text_of(encode_png(kColour, flat(kColour, {200, 90, 30})));
  const auto with_two = [&](const std::string& key, std::uint8_t red) {
    return sample(key, colours(red), "1") + member(key + ".png", other);
  };
  folder.write("train-0.tar", as_bytes(with_two("a", 10) + with_two("b", 20) + kEnd));
  folder.write("train-1.tar", as_bytes(with_two("c", 30) + kEnd));
  testing::internal::CaptureStderr();
  const auto train = open_webdataset({.path = folder.path()}, Split::train);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "warning"), '\n'), 1) << log;
  expect_parts(lines_naming(log, "warning"), {"train-0.tar", "sample a"});
  ASSERT_EQ(train->size(), 3);
  for (std::int64_t i = 0; i < 3; ++i) expect_red(*train, i, static_cast<int>(10 + 10 * i), 1);
}

TEST(WebDataset, LongNamesOfBothTarFormatsAreRead) {
  const TemporaryFolder folder;
  const std::string long_name = std::string(150, 'd') + "/image";
  const auto pax = [](const std::string& path) {
    const std::string line = " path=" + path + "\n";
    std::size_t length = line.size() + 3;  // a number of three digits
    return member("pax", fmt::format("{}{}", length, line), 'x');
  };
  folder.write("train.tar", as_bytes(member("././@LongLink", long_name + ".jpg" + std::string(1, '\0'), 'L') +
                                     member(long_name.substr(0, 99), text_of(colours(10))) +
                                     pax(long_name + ".cls") + member("short", "1") + kEnd));
  const auto train = open_webdataset({.path = folder.path()}, Split::train);
  ASSERT_EQ(train->size(), 1);
  expect_red(*train, 0, 10, 1);
}

TEST(WebDataset, ErrorsNameTheirPlace) {
  const auto complaint = [](const std::string& text) {
    const TemporaryFolder folder;
    folder.write("train.tar", as_bytes(text));
    return message_of<DataError>([&] {
      const auto dataset = open_webdataset({.path = folder.path()}, Split::train);
      for (std::int64_t i = 0; i < dataset->size(); ++i) read(*dataset, i);
    });
  };
  const std::string good = sample("a", colours(10), "0");
  EXPECT_EQ(complaint(good + kEnd), "");
  const auto byte = [](std::size_t at) { return fmt::format("byte {}", at); };
  expect_parts(complaint(good + member("b.jpg", text_of(colours(1))) + kEnd),
               {"train.tar", byte(good.size()), "sample b", ".cls"});
  expect_parts(complaint(good + member("b.cls", "1") + kEnd), {byte(good.size()), "sample b", ".jpg"});
  expect_parts(complaint(good + sample("b", colours(1), "cat")), {"b.cls", "\"cat\""});
  expect_parts(complaint(std::string(600, 'x')), {"train.tar", byte(0), " tar "});
  expect_parts(complaint(good.substr(0, good.size() - 512)), {"train.tar", byte(good.size() - 1024)});
  expect_parts(complaint(good + "rest"), {"train.tar", byte(good.size())});
  expect_parts(complaint(""), {"train.tar", byte(0)});
  const std::string empty = complaint(kEnd);
  expect_parts(empty, {"train.tar"});
  EXPECT_EQ(empty.find("byte"), std::string::npos) << "an empty file has no damaged byte: " << empty;
  expect_parts(complaint(sample("a", {1, 2, 3}, "0")), {"train.tar", byte(512), "JPEG"});
  expect_parts(complaint(member("x", "99 path=a", 'x')), {"train.tar", byte(512), "header"});
  // The header's checksum covers all its bytes.
  for (std::size_t at = 0; at < 500; at += 7) {
    std::string flipped = good + kEnd;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    EXPECT_NE(complaint(flipped), "") << at;
  }
  const TemporaryFolder folder;
  folder.write("train.tar.gz", {1});
  folder.write("train", {1});
  EXPECT_NE(message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train); }), "");
}

// One sample without a label may be a fault of its file, so other files are used only if the user sets the
// key.
TEST(StoredImages, AMissingTestLabelIsAnErrorWithTheKeysThatHelp) {
  const std::string image = bytes_feature("image", text_of(colours(1)));
  const std::string record = example(image + number_feature("label", 1));
  const std::string tar = sample("a", colours(1), "1") + kEnd;
  struct Case {
    std::string format, ending, labelled, unlabelled;
  };
  for (const Case& each :
       {Case{"tfrecord", ".tfrecord", record, example(image)},
        Case{"tfrecord", ".tfrecord", record, example(image + number_feature("label", ~std::uint64_t{0}))},
        Case{"webdataset", ".tar", tar, member("a.jpg", text_of(colours(1))) + kEnd},
        Case{"webdataset", ".tar", tar, sample("a", colours(1), "-1") + kEnd}}) {
    const TemporaryFolder folder;
    folder.write("train" + each.ending, as_bytes(each.labelled));
    folder.write("test" + each.ending, as_bytes(each.unlabelled));
    folder.write("val" + each.ending, as_bytes(each.labelled));
    DatasetOptions options{.format = each.format, .path = folder.path()};
    expect_parts(message_of<DataError>([&] { open_dataset(options, Split::test); }),
                 {"test" + each.ending, "label", "data.test_split", "data.validation_share"});
    options.test_split = "val";
    EXPECT_EQ(open_dataset(options, Split::test)->size(), 1);
  }
}

TEST(StoredImages, ImagesOfAnySizeAreResized) {
  const TemporaryFolder folder;
  const ImageShape wide{10, 30, 3};
  folder.write("train.tar", as_bytes(sample("a", colours(10), "0") +
                                     sample("b", encode(wide, noise(wide, 1)), "1") + kEnd));
  const std::string message =
      message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train)->probe(1); });
  const std::size_t second = sample("a", colours(10), "0").size() + 512;
  expect_parts(message, {"train.tar", fmt::format("byte {}", second), "data.resize"});
  EXPECT_TRUE(std::regex_search(message, std::regex(R"(\b30\b\D+\b10\b|\b10\b\D+\b30\b)"))) << message;
  const auto resized = open_dataset(
      {.format = "webdataset", .path = folder.path(), .resize = {.size = 8}, .synthetic = {}}, Split::train);
  EXPECT_EQ(resized->image_shape(), (ImageShape{8, 8, 3}));
  EXPECT_NO_THROW(resized->probe(1));
  read(*resized, 1);
}

TEST(StoredImages, ImagesOfTwoSizesAreNotCopiedAsIfOfOne) {
  const TemporaryFolder folder;
  const ImageShape wide{10, 30, 3};
  folder.write("train.tar", as_bytes(sample("a", colours(10), "0") +
                                     sample("b", encode(wide, noise(wide, 1)), "1") + kEnd));
  const auto images = open_webdataset({.path = folder.path()}, Split::train);
  expect_parts(message_of<DataError>([&] {
                 pack({{.name = "train", .dataset = images.get()}}, folder.path() / "r",
                      {.coding = ImageCoding::file});
               }),
               {"train.tar", "data.resize"});
}

TEST(StoredImages, AHeaderOfAHugeImageIsRefused) {
  const TemporaryFolder folder;
  const Bytes huge = with_claimed_size(colours(10), 65000, 64000);
  const std::vector<std::string> told = {"train.tar", "65000", "64000", std::to_string(kMostImageBytes)};
  folder.write("train.tar", as_bytes(sample("a", colours(10), "0") + sample("b", huge, "1") + kEnd));
  const auto resized = open_dataset(
      {.format = "webdataset", .path = folder.path(), .resize = {.size = 8}, .synthetic = {}}, Split::train);
  expect_parts(message_of<DataError>([&] { read(*resized, 1); }), told);
  folder.write("train.tar", as_bytes(sample("a", huge, "0") + kEnd));
  expect_parts(message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train); }), told);
}

}  // namespace
}  // namespace lockstep
