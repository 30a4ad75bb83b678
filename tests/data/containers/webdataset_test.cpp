// SPDX-License-Identifier: Apache-2.0
#include "data/containers/webdataset.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/images/png.h"
#include "tests/data/containers/container_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

TEST(WebDataset, ReadsImagesAndLabelsOfAllShardsInOrder) {
  const TemporaryFolder folder;
  folder.write("set-train-000000.tar",
               as_bytes(tar_member("./", "", '5') + tar_sample("./a/0001", red_jpeg(10), "1\n") +
                        tar_member("./a/0002.cls", "0") + tar_member("./a/0002.json", "{}") +
                        tar_member("./a/0002.JPG", red_jpeg(20)) + kTarEnd));
  folder.write("set-train-000001.tar",
               as_bytes(tar_sample("b.c/x", red_jpeg(30), " 2 ") + tar_member("README", "hello")));
  folder.write("set-val-000000.tar",
               as_bytes(tar_sample("v", red_jpeg(40), "1") + kTarEnd + tar_sample("v", red_jpeg(50), "0") +
                        kTarEnd + std::string(600, 'x')));
  const auto train =
      open_dataset({.format = "webdataset", .path = folder.path(), .synthetic = {}}, Split::train);
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->classes(), 3);
  expect_red(*train, 0, 10, 1);
  expect_red(*train, 1, 20, 0);
  expect_red(*train, 2, 30, 2);
  const auto test = open_webdataset({.path = folder.path()}, Split::test);
  ASSERT_EQ(test->size(), 2) << "the second archive in the file counts";
  expect_red(*test, 0, 40, 1);
  expect_red(*test, 1, 50, 0);
}

// As tar of macOS writes them: attributes of each file, in a hidden member before it.
TEST(WebDataset, HiddenMembersAreSkipped) {
  const TemporaryFolder folder;
  const auto with_attributes = [](const std::string& in, const std::string& name, const auto& data) {
    return tar_member(in + "._" + name, "Mac OS X") + tar_member(in + name, data);
  };
  folder.write(
      "train.tar",
      as_bytes(with_attributes("./", "0001.cls", "1") + with_attributes("./", "0001.jpg", red_jpeg(10)) +
               with_attributes("", "0002.jpg", red_jpeg(20)) + with_attributes("", "0002.cls", "0") +
               tar_member(".DS_Store", "x") + tar_sample(".cache/0003", red_jpeg(30), "2") + kTarEnd));
  const auto train = open_webdataset({.path = folder.path()}, Split::train);
  ASSERT_EQ(train->size(), 3);
  expect_red(*train, 0, 10, 1);
  expect_red(*train, 1, 20, 0);
  expect_red(*train, 2, 30, 2);  // in a hidden folder, as in "tar c ~/.cache/images"
}

TEST(WebDataset, TheFirstOfSeveralImagesIsUsedWithAWarning) {
  const TemporaryFolder folder;
  const Bytes other = encode_png(kColour, flat(kColour, {200, 90, 30}));
  const auto with_two = [&](const std::string& key, std::uint8_t red) {
    return tar_sample(key, red_jpeg(red), "1") + tar_member(key + ".png", other);
  };
  folder.write("train-0.tar", as_bytes(with_two("a", 10) + with_two("b", 20) + kTarEnd));
  folder.write("train-1.tar", as_bytes(with_two("c", 30) + kTarEnd));
  testing::internal::CaptureStderr();
  const auto train = open_webdataset({.path = folder.path()}, Split::train);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "warning"), '\n'), 1) << log;
  expect_parts(lines_naming(log, "warning"), {"train-0.tar", "sample a"});
  ASSERT_EQ(train->size(), 3);
  for (std::int64_t i = 0; i < 3; ++i) expect_red(*train, i, static_cast<int>(10 + 10 * i), 1);
}

// WebDataset takes ".5.jpg" as an ending.
TEST(WebDataset, ASampleWithSeveralDotsInItsNameIsSkippedWithAWarning) {
  const TemporaryFolder folder;
  folder.write("train.tar", as_bytes(tar_sample("photo 3.5", red_jpeg(10), "1") +
                                     tar_sample("b", red_jpeg(20), "0") + tar_member("b.seg.png", "x")));
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_webdataset({.path = folder.path()}, Split::train)->size(), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(lines_naming(log, "warning"), {"train.tar", "photo 3.5"});
  EXPECT_EQ(log.find("seg.png"), std::string::npos) << log;
}

// tar writes links for files that are links, and for files that it has already written under another name.
TEST(WebDataset, LinksAreSkippedWithAWarning) {
  const TemporaryFolder folder;
  folder.write("train.tar", as_bytes(tar_member("folder", "", '2') + tar_sample("a", red_jpeg(10), "1") +
                                     tar_member("b.jpg", "", '1') + tar_member("b.cls", "", '2') + kTarEnd));
  testing::internal::CaptureStderr();
  EXPECT_EQ(open_webdataset({.path = folder.path()}, Split::train)->size(), 1);
  const std::string warnings = lines_naming(testing::internal::GetCapturedStderr(), "warning");
  EXPECT_EQ(std::ranges::count(warnings, '\n'), 1) << warnings;
  expect_parts(warnings, {"train.tar", "b.jpg"});
}

// GNU tar writes a long target ('K') before the long name, Go's archive/tar after it.
TEST(WebDataset, LinksWithLongTargetsAreNamedInFull) {
  const std::string name = std::string(150, 'd') + "/b.jpg";
  const auto long_text = [](const std::string& text, char type) {
    return tar_member("././@LongLink", text + std::string(1, '\0'), type);
  };
  const std::string of_name = long_text(name, 'L'), of_target = long_text(std::string(150, 't'), 'K');
  for (const std::string& texts : {of_name + of_target, of_target + of_name}) {
    const TemporaryFolder folder;
    folder.write("train.tar",
                 as_bytes(tar_sample("a", red_jpeg(10), "1") + texts + tar_member(name, "", '2') + kTarEnd));
    testing::internal::CaptureStderr();
    EXPECT_EQ(open_webdataset({.path = folder.path()}, Split::train)->size(), 1);
    expect_parts(lines_naming(testing::internal::GetCapturedStderr(), "warning"), {"train.tar", name});
  }
}

// A download may end after any sample.
TEST(WebDataset, AFileWithoutAnEndCausesAWarning) {
  const TemporaryFolder folder;
  const std::string samples = tar_sample("a", red_jpeg(10), "1") + tar_sample("b", red_jpeg(20), "0");
  const auto warnings = [&](const std::string& text, Split split = Split::train) {
    folder.write("train.tar", as_bytes(text));
    testing::internal::CaptureStderr();
    EXPECT_EQ(open_webdataset({.path = folder.path()}, split)->size(), 2);
    return lines_naming(testing::internal::GetCapturedStderr(), "warning");
  };
  EXPECT_EQ(warnings(samples + kTarEnd), "");
  EXPECT_EQ(warnings(samples + kTarEnd + "rest"), "");
  expect_parts(warnings(samples), {"train.tar", "end"});
  folder.write("test.tar", as_bytes(samples + kTarEnd));
  EXPECT_EQ(warnings(samples, Split::test), "") << "opening the training split has logged it";
  folder.write("test.tar", as_bytes(samples));
  expect_parts(warnings(samples, Split::test), {"test.tar"});
}

TEST(WebDataset, LongNamesOfBothTarFormatsAreRead) {
  const TemporaryFolder folder;
  const std::string long_name = std::string(150, 'd') + "/image";
  const auto pax = [](const std::string& path) {
    const std::string line = " path=" + path + "\n";
    std::size_t length = line.size() + 3;  // a number of three digits
    return tar_member("pax", fmt::format("{}{}", length, line), 'x');
  };
  folder.write("train.tar",
               as_bytes(tar_member("././@LongLink", long_name + ".jpg" + std::string(1, '\0'), 'L') +
                        tar_member(long_name.substr(0, 99), red_jpeg(10)) + pax(long_name + ".cls") +
                        tar_member("short", "1") + kTarEnd));
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
  const std::string good = tar_sample("a", red_jpeg(10), "0");
  EXPECT_EQ(complaint(good + kTarEnd), "");
  const auto byte = [](std::size_t at) { return fmt::format("byte {}", at); };
  expect_parts(complaint(good + tar_member("b.jpg", red_jpeg(1)) + kTarEnd),
               {"train.tar", byte(good.size()), "sample b", ".cls"});
  expect_parts(complaint(good + tar_member("b.cls", "1") + kTarEnd), {byte(good.size()), "sample b", ".jpg"});
  expect_parts(complaint(good + tar_member("b.left.jpg", red_jpeg(1)) + tar_member("b.cls", "1") + kTarEnd),
               {byte(good.size()), "sample b", ".jpg", "b.left.jpg", "dots"});
  expect_parts(complaint(good + tar_sample("b", red_jpeg(1), "cat")), {"b.cls", "\"cat\""});
  expect_parts(complaint(good + tar_member("a.cls", "1")), {byte(good.size() + 512), "sample a", "labels"});
  expect_parts(complaint(std::string(600, 'x')), {"train.tar", byte(0), " tar "});
  expect_parts(complaint(good.substr(0, good.size() - 512)), {"train.tar", byte(good.size() - 1024)});
  expect_parts(complaint(good + "rest"), {"train.tar", byte(good.size())});
  expect_parts(complaint(""), {"train.tar", byte(0)});
  const std::string empty = complaint(kTarEnd);
  expect_parts(empty, {"train.tar"});
  EXPECT_EQ(empty.find("byte"), std::string::npos) << "an empty file has no damaged byte: " << empty;
  expect_parts(complaint(tar_sample("a", {1, 2, 3}, "0")), {"train.tar", byte(512), "JPEG"});
  expect_parts(complaint(tar_member("x", "99 path=a", 'x')), {"train.tar", byte(512), "header"});
  // The header's checksum covers all its bytes.
  for (std::size_t at = 0; at < 500; at += 7) {
    std::string flipped = good + kTarEnd;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    SCOPED_TRACE(at);
    expect_parts(complaint(flipped), {"train.tar", byte(0)});
  }
  const TemporaryFolder folder;
  folder.write("train.tar.gz", {1});
  folder.write("train", {1});
  expect_parts(message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train); }),
               {"train.tar.gz", byte(0)});
}

TEST(WebDataset, TheFingerprintCoversTheBytesOfImages) {
  const TemporaryFolder folder;
  std::string tar = tar_sample("a", red_jpeg(10), "0") + tar_sample("b", red_jpeg(20), "1") + kTarEnd;
  const auto fingerprint = [&] {
    folder.write("train.tar", as_bytes(tar));
    return open_webdataset({.path = folder.path()}, Split::train)->fingerprint();
  };
  const std::uint64_t whole = fingerprint();
  EXPECT_EQ(fingerprint(), whole);
  char& pixels = tar[512 + red_jpeg(10).size() - 4];  // before the marker of the image's end
  pixels = static_cast<char>(pixels ^ 1);
  EXPECT_NE(fingerprint(), whole);
}

}  // namespace
}  // namespace lockstep
