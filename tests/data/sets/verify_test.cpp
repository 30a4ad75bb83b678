// SPDX-License-Identifier: Apache-2.0
#include "data/sets/verify.h"

#include <algorithm>
#include <memory>
#include <regex>
#include <set>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/error.h"
#include "data/formats/image_folder.h"
#include "data/formats/synthetic.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// Ten images of two classes.
class Images {
 public:
  Images() {
    for (int i = 0; i < 10; ++i) write(i, flat_jpeg({10, 20, static_cast<std::uint8_t>(i)}));
  }
  static std::string name(int i) { return fmt::format("train/{}/{}.jpg", i / 5, i); }
  void write(int i, const Bytes& bytes) const { folder_.write(name(i), bytes); }
  std::string path(int i) const { return (folder_.path() / name(i)).string(); }
  const TemporaryFolder& folder() const { return folder_; }

  std::unique_ptr<Dataset> open() const { return open_image_folder({.path = folder_.path()}, Split::train); }
  template <typename E>
  std::string error(const VerifyOptions& options) const {
    const std::unique_ptr<Dataset> dataset = open();
    return message_of<E>([&] { verify(*dataset, options); });
  }

 private:
  TemporaryFolder folder_;
};

// The message's reason for a file: the rest of the line after its path.
std::string reason_of(const std::string& message, const std::string& path) {
  const std::size_t at = message.find(path);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + path.size();
  return message.substr(begin, message.find('\n', begin) - begin);
}

TEST(Verify, SoundImagesPass) {
  const Images images;
  for (const Verify extent : {Verify::nothing, Verify::headers, Verify::all}) {
    for (const int threads : {1, 3}) {
      EXPECT_NO_THROW(verify(*images.open(), {.extent = extent, .threads = threads}));
    }
  }
}

TEST(Verify, HeadersFindEveryFileThatIsNoImageOfTheSize) {
  const Images images;
  const ImageShape taller{.height = 9, .width = 12, .channels = 3};
  images.write(7, {'G', 'I', 'F', '8'});
  images.write(3, encode(taller, flat(taller, {1, 2, 3})));
  images.write(5, {});
  for (const int threads : {1, 4}) {
    const std::string error = images.error<DataError>({.extent = Verify::headers, .threads = threads});
    expect_parts(error, {"3 samples", "data.verify", "data.on_error"});
    const std::vector<double> sizes = numbers_named_in(reason_of(error, images.path(3)));
    EXPECT_EQ(std::set<double>(sizes.begin(), sizes.end()), (std::set<double>{8, 9, 12})) << error;
    for (const int i : {5, 7}) expect_parts(reason_of(error, images.path(i)), {"JPEG"});
    EXPECT_NE(reason_of(error, images.path(5)), reason_of(error, images.path(7)));
    EXPECT_LT(error.find(images.path(3)), error.find(images.path(5))) << error;
    EXPECT_LT(error.find(images.path(5)), error.find(images.path(7))) << error;
  }
  EXPECT_EQ(images.error<DataError>({.extent = Verify::nothing}), "");
}

TEST(Verify, ReportsTheCountAndTheFirstFiles) {
  const Images images;
  for (int i = 1; i < 9; ++i) images.write(i, {1, 2, 3});
  const std::string error = images.error<DataError>({.extent = Verify::headers, .threads = 3});
  expect_parts(error, {"8 samples", images.path(1), images.path(5)});
  EXPECT_EQ(error.find(images.path(6)), std::string::npos) << error;
  const std::size_t rest = error.find('\n', error.find(images.path(5)));
  ASSERT_NE(rest, std::string::npos) << error;
  EXPECT_GE(std::ranges::count(numbers_named_in(error.substr(rest)), 3.0), 1)
      << "expected the number of files that are not named: " << error;
}

TEST(Verify, AllFindsWhatHeadersCannot) {
  const Images images;
  images.write(4, with_sound_header_only(flat_jpeg({1, 2, 3})));
  EXPECT_EQ(images.error<DataError>({.extent = Verify::headers}), "");
  const std::string error = images.error<DataError>({.extent = Verify::all, .threads = 2});
  expect_parts(error, {"1 sample", images.path(4)});
  expect_parts(reason_of(error, images.path(4)), {"JPEG"});
}

TEST(Verify, AllAcceptsDamagedImagesAndReportsTheirNumber) {
  const Images images;
  Bytes truncated = encode(kColour, noise(kColour, 1));
  truncated.resize(truncated.size() - 40);
  images.write(2, truncated);
  images.write(9, truncated);
  testing::internal::CaptureStderr();
  EXPECT_EQ(images.error<DataError>({.extent = Verify::all, .threads = 2}), "");
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(log, {images.path(2), images.path(9), "2 samples"});
}

TEST(Verify, ShardsCoverEverySampleOnce) {
  const Images images;
  for (int i = 1; i < 10; ++i) images.write(i, {1, 2, 3});
  for (const int size : {1, 3, 4, 12}) {
    int found = 0;
    for (int rank = 0; rank < size; ++rank) {
      const std::string error =
          images.error<DataError>({.extent = Verify::headers, .shard = {.rank = rank, .size = size}});
      std::smatch match;
      if (std::regex_search(error, match, std::regex(R"((\d+) samples?\b)")))
        found += std::stoi(match.str(1));
    }
    EXPECT_EQ(found, 9) << size << " shards";
  }
}

TEST(Verify, ReportsTheProgressOfItsShard) {
  const Images images;
  images.write(3, {1, 2, 3});
  std::string told;
  const auto tell = [&](std::int64_t done, std::int64_t all) { told += fmt::format("{}/{} ", done, all); };
  EXPECT_NE(images.error<DataError>({.shard = {.rank = 0, .size = 2}, .told_progress = tell}), "");
  EXPECT_EQ(told, "0/5 1/5 2/5 3/5 4/5 5/5 ");
}

TEST(Verify, FilesThatCannotBeReadAreAnIoError) {
  const Images images;
  images.folder().remove(Images::name(6));
  ASSERT_EQ(mkfifo(images.path(6).c_str(), 0600), 0);
  const std::string unreadable = images.error<IoError>({.extent = Verify::headers});
  expect_parts(unreadable, {"1 sample", images.path(6)});
  EXPECT_EQ(unreadable.find("data.verify"), std::string::npos)
      << "without the check, such a file ends the job: " << unreadable;
  images.write(8, {1, 2, 3});
  expect_parts(images.error<DataError>({.extent = Verify::headers}),
               {"2 samples", images.path(6), images.path(8)});
}

// Editors put previews and colour profiles of any length before the image's frame header.
TEST(Verify, AHeaderMayBeLong) {
  const Images images;
  Bytes jpeg = flat_jpeg({1, 2, 3});
  for (int i = 0; i < 3; ++i) {
    Bytes comment(2 + 60'000, 'x');
    comment[0] = 0xFF;
    comment[1] = 0xFE;
    comment[2] = 60'000 >> 8;
    comment[3] = 60'000 & 0xFF;
    jpeg.insert(jpeg.begin() + 2, comment.begin(), comment.end());
  }
  images.write(1, jpeg);
  Bytes long_tail = flat_jpeg({1, 2, 3});
  long_tail.resize(200'000);
  images.write(2, long_tail);
  EXPECT_EQ(images.error<DataError>({.extent = Verify::headers}), "");
  EXPECT_EQ(read(*images.open(), 1), read(*images.open(), 2));
}

TEST(Verify, DatasetsCheckedAtOpeningAreNotReadAgain) {
  SyntheticOptions options;
  options.train_samples = 1'000'000'000'000;  // years, if it checked each one
  verify(*open_synthetic(options, Split::train), {.extent = Verify::all});
}

}  // namespace
}  // namespace lockstep
