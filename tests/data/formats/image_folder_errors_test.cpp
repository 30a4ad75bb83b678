// SPDX-License-Identifier: Apache-2.0
//
// Errors of data/formats/image_folder.h about folders and files that are missing, damaged or of the wrong
// kind.
#include <algorithm>
#include <memory>
#include <regex>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/error.h"
#include "data/formats/image_folder.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

template <typename E>
std::string open_error(const TemporaryFolder& folder, Split split = Split::train) {
  return message_of<E>([&] { open_image_folder({.path = folder.path()}, split); });
}

// The error of reading a broken second file; the first file is sound.
std::string read_error(const TemporaryFolder& folder, const Bytes& broken) {
  folder.write("train/a/1.jpg", flat_jpeg({10, 20, 30}));
  folder.write("train/a/2.jpg", broken);
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  return message_of<DataError>([&] { read(*dataset, 1); });
}

// Expects that the error names these numbers, in ascending order, after the name of the image.
void expect_sizes(const std::string& error, const std::string& name, const std::vector<std::int64_t>& sizes) {
  const std::size_t begin = error.find(name);
  ASSERT_NE(begin, std::string::npos) << name << ": " << error;
  const std::string rest = error.substr(begin + name.size());
  static const std::regex number(R"(\d+)");
  std::vector<std::int64_t> found;
  for (std::sregex_iterator each(rest.begin(), rest.end(), number), end; each != end; ++each)
    found.push_back(std::stoll(each->str()));
  std::ranges::sort(found);
  EXPECT_TRUE(std::ranges::includes(found, sizes)) << error;
}

TEST(ImageFolder, MissingFoldersNameTheExpectedStructure) {
  const auto expect = [](const std::string& message, std::vector<std::string> parts) {
    parts.insert(parts.end(), {"data.path", "train/CLASS/*.jpg", "test/CLASS/*.jpg"});
    expect_parts(message, parts);
  };
  const std::string absent = "No such file or directory";
  expect(message_of<IoError>([] { open_image_folder({.path = "/no/such/set"}, Split::train); }),
         {"/no/such/set", absent});
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  for (const Split split : {Split::train, Split::test})
    expect(open_error<IoError>(folder, split), {path + "/train", absent});
  folder.write("train", {1});
  const std::string no_folder = open_error<IoError>(folder);
  expect(no_folder, {path + "/train"});
  EXPECT_EQ(no_folder.find(absent), std::string::npos) << no_folder;
  folder.remove("train");
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  expect(open_error<IoError>(folder, Split::test),
         {path, "test/", "val/", "data.test_split", "data.validation_share"});
}

TEST(ImageFolder, FoldersWithoutImagesNameTheExpectedStructure) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  std::filesystem::create_directory(folder.path() / "train");
  expect_parts(open_error<DataError>(folder), {path + "/train", "train/CLASS/*.jpg"});
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  folder.write("train/b/1.gif", {1});
  expect_parts(open_error<DataError>(folder), {path + "/train/b", "JPEG", "PNG", "train/CLASS/*.jpg"});
  std::filesystem::create_directories(folder.path() / "test/a");
  expect_parts(open_error<DataError>(folder, Split::test),
               {path + "/test", "JPEG", "PNG", "test/CLASS/*.jpg", "data.test_split"});
}

TEST(ImageFolder, AClassThatTrainDoesNotHaveIsNamed) {
  const TemporaryFolder folder;
  folder.write("train/cat/1.jpg", flat_jpeg({1}));
  folder.write("test/cat/1.jpg", flat_jpeg({1}));
  folder.write("test/dog/1.jpg", flat_jpeg({1}));
  expect_parts(open_error<DataError>(folder, Split::test),
               {(folder.path() / "test/dog").string(), "train/", "data.test_split"});
}

TEST(ImageFolder, AnImageOfAnotherSizeIsNamedWithBothSizes) {
  const TemporaryFolder folder;
  const ImageShape taller{.height = 9, .width = 12, .channels = 3};
  const std::string error = read_error(folder, encode(taller, flat(taller, {1, 2, 3})));
  expect_parts(error, {(folder.path() / "train/a/2.jpg").string(), "data.resize"});
  expect_sizes(error, "2.jpg", {8, 9, 12, 12});
  const ImageShape wider{.height = 8, .width = 13, .channels = 3};
  expect_sizes(read_error(folder, encode(wider, flat(wider, {1, 2, 3}))), "2.jpg", {8, 8, 12, 13});
  // The same number of pixels with height and width exchanged.
  const ImageShape turned{.height = 12, .width = 8, .channels = 3};
  expect_sizes(read_error(folder, encode(turned, flat(turned, {1, 2, 3}))), "2.jpg", {8, 8, 12, 12});
}

TEST(ImageFolder, AHeaderOfAHugeImageIsRefused) {
  const TemporaryFolder folder;
  const Bytes huge = with_claimed_size(flat_jpeg({1, 2, 3}), 65000, 65000);
  expect_sizes(read_error(folder, huge), "2.jpg", {8, 12, 65000, 65000});
  folder.write("train/a/1.jpg", huge);
  expect_sizes(open_error<DataError>(folder), "1.jpg", {65000, 65000, kMostImageBytes});
}

TEST(ImageFolder, FilesThatAreNoJpegAreNamedWithTheReasonOfTurboJpeg) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "train/a/2.jpg").string();
  expect_parts(read_error(folder, {}), {path, "empty"});
  expect_parts(read_error(folder, {'G', 'I', 'F', '8', '9', 'a'}),
               {path, "Not a JPEG file: starts with 0x47 0x49"});
  expect_parts(read_error(folder, {0x89, 'P', 'N', 'G', 13, 10, 26, 10}), {path, "PNG"});
  expect_parts(read_error(folder, {0xFF, 0xD8, 0xFF, 0xD9}), {path});
  folder.write("train/a/1.jpg", {'G', 'I', 'F', '8'});
  expect_parts(open_error<DataError>(folder), {"train/a/1.jpg", "Not a JPEG file"});
}

TEST(ImageFolder, AFileThatCannotBeReadIsAnIoError) {
  const TemporaryFolder folder;
  for (const char* name : {"1", "2", "3", "4"}) {
    folder.write(fmt::format("train/a/{}.jpg", name), flat_jpeg({1}));
  }
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  folder.remove("train/a/2.jpg");
  folder.remove("train/a/3.jpg");
  std::filesystem::create_directory(folder.path() / "train/a/3.jpg");
  folder.remove("train/a/4.jpg");
  ASSERT_EQ(mkfifo((folder.path() / "train/a/4.jpg").c_str(), 0600), 0);
  const auto error = [&](std::int64_t index) { return message_of<IoError>([&] { read(*dataset, index); }); };
  expect_parts(error(1), {"train/a/2.jpg", "No such file or directory"});
  expect_parts(error(2), {"train/a/3.jpg", "regular file"});
  expect_parts(error(3), {"train/a/4.jpg", "regular file"});
}

TEST(ImageFolder, AHugeFileIsNotRead) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({1}));
  std::filesystem::resize_file(folder.path() / "train/a/1.jpg", std::uintmax_t{1} << 36);  // sparse
  expect_parts(open_error<DataError>(folder), {"train/a/1.jpg", "68719476736", "268435456"});
}

}  // namespace
}  // namespace lockstep
