// SPDX-License-Identifier: Apache-2.0
//
// The common part of formats with many images in one file.
#include "data/containers/stored_images.h"

#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/containers/webdataset.h"
#include "data/records/pack.h"
#include "tests/data/containers/container_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// One sample without a label may be a fault of its file, so other files are used only if the user sets the
// key.
TEST(StoredImages, AMissingTestLabelIsAnErrorWithTheKeysThatHelp) {
  const std::string image = bytes_feature("image", red_jpeg(1));
  const std::string record = example(image + number_feature("label", 1));
  const std::string tar = tar_sample("a", red_jpeg(1), "1") + kTarEnd;
  struct Case {
    std::string format, ending, labelled, unlabelled;
  };
  for (const Case& each :
       {Case{"tfrecord", ".tfrecord", record, example(image)},
        Case{"tfrecord", ".tfrecord", record, example(image + number_feature("label", ~std::uint64_t{0}))},
        Case{"webdataset", ".tar", tar, tar_member("a.jpg", red_jpeg(1)) + kTarEnd},
        Case{"webdataset", ".tar", tar, tar_sample("a", red_jpeg(1), "-1") + kTarEnd}}) {
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
  folder.write("train.tar", as_bytes(tar_sample("a", red_jpeg(10), "0") +
                                     tar_sample("b", encode(wide, noise(wide, 1)), "1") + kTarEnd));
  const std::string message =
      message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train)->probe(1); });
  const std::size_t second = tar_sample("a", red_jpeg(10), "0").size() + 512;
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
  folder.write("train.tar", as_bytes(tar_sample("a", red_jpeg(10), "0") +
                                     tar_sample("b", encode(wide, noise(wide, 1)), "1") + kTarEnd));
  const auto images = open_webdataset({.path = folder.path()}, Split::train);
  expect_parts(message_of<DataError>([&] {
                 pack({{.name = "train", .dataset = images.get()}}, folder.path() / "r",
                      {.coding = ImageCoding::file});
               }),
               {"train.tar", "data.resize"});
}

TEST(StoredImages, AHeaderOfAHugeImageIsRefused) {
  const TemporaryFolder folder;
  const Bytes huge = with_claimed_size(red_jpeg(10), 65000, 64000);
  const std::vector<std::string> told = {"train.tar", "65000", "64000", std::to_string(kMostImageBytes)};
  folder.write("train.tar",
               as_bytes(tar_sample("a", red_jpeg(10), "0") + tar_sample("b", huge, "1") + kTarEnd));
  const auto resized = open_dataset(
      {.format = "webdataset", .path = folder.path(), .resize = {.size = 8}, .synthetic = {}}, Split::train);
  expect_parts(message_of<DataError>([&] { read(*resized, 1); }), told);
  folder.write("train.tar", as_bytes(tar_sample("a", huge, "0") + kTarEnd));
  expect_parts(message_of<DataError>([&] { open_webdataset({.path = folder.path()}, Split::train); }), told);
}

}  // namespace
}  // namespace lockstep
