// SPDX-License-Identifier: Apache-2.0
//
// Dataset::fingerprint is equal for copies and differs for different data.
#include <filesystem>

#include <gtest/gtest.h>

#include "data/formats/idx.h"
#include "data/formats/image_folder.h"
#include "tests/data/idx_files.h"
#include "tests/data/jpeg_files.h"
#include "tests/data/numbered_dataset.h"

namespace lockstep {
namespace {

std::uint64_t of_idx(const Bytes& pixels, const Bytes& labels) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_images(2, 1, 2, pixels));
  folder.write("train-labels-idx1-ubyte", idx_labels(labels));
  return open_idx(folder.path(), Split::train)->fingerprint();
}

TEST(Fingerprint, DependsOnEveryPixelAndLabelOfIdx) {
  const std::uint64_t whole = of_idx({1, 2, 3, 4}, {0, 1});
  EXPECT_EQ(of_idx({1, 2, 3, 4}, {0, 1}), whole) << "a copy in another folder";
  for (const Bytes& pixels : {Bytes{9, 2, 3, 4}, Bytes{1, 9, 3, 4}, Bytes{1, 2, 9, 4}, Bytes{1, 2, 3, 9}})
    EXPECT_NE(of_idx(pixels, {0, 1}), whole);
  for (const Bytes& labels : {Bytes{1, 1}, Bytes{0, 0}, Bytes{1, 0}})
    EXPECT_NE(of_idx({1, 2, 3, 4}, labels), whole);
}

class JpegFingerprint : public testing::Test {
 protected:
  static void fill(const TemporaryFolder& folder) {
    for (const char* name : {"train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg"})
      folder.write(name, flat_jpeg({20}));
  }
  static std::uint64_t of(const TemporaryFolder& folder) {
    return open_image_folder({.path = folder.path()}, Split::train)->fingerprint();
  }
  JpegFingerprint() { fill(folder_); }
  std::uint64_t fingerprint() const { return of(folder_); }

  TemporaryFolder folder_;
};

TEST_F(JpegFingerprint, DependsOnNamesClassesAndBytes) {
  const std::uint64_t whole = fingerprint();
  const TemporaryFolder copy;
  fill(copy);
  EXPECT_EQ(of(copy), whole);

  folder_.write("train/b/1.jpg", flat_jpeg({21}));
  EXPECT_NE(fingerprint(), whole) << "another image under the same name";
  folder_.write("train/b/1.jpg", flat_jpeg({20}));
  EXPECT_EQ(fingerprint(), whole);

  const auto rename = [&](const char* from, const char* to) {
    std::filesystem::rename(folder_.path() / "train" / from, folder_.path() / "train" / to);
  };
  rename("a/2.jpg", "a/3.jpg");
  EXPECT_NE(fingerprint(), whole) << "another image under another name";
  rename("a/3.jpg", "b/2.jpg");
  EXPECT_NE(fingerprint(), whole) << "in another class";
  rename("b/2.jpg", "a/2.jpg");
  rename("b", "c");
  EXPECT_NE(fingerprint(), whole) << "a class of another name";
}

TEST_F(JpegFingerprint, DoesNotThrowForUnreadableFiles) {
  folder_.remove("train/b/1.jpg");
  std::filesystem::create_symlink("nowhere", folder_.path() / "train/b/1.jpg");
  EXPECT_NO_THROW(fingerprint());
}

class SwappedDataset : public NumberedDataset {
 public:
  SwappedDataset(std::int64_t size, std::int64_t odd) : NumberedDataset(size), odd_(odd) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    return NumberedDataset::read(index == odd_ ? 1 : index, image);
  }

 private:
  std::int64_t odd_;
};

TEST(Fingerprint, DependsOnTheFirstAndTheLastSampleOfAnyDataset) {
  const std::uint64_t whole = NumberedDataset(1000).fingerprint();
  EXPECT_EQ(NumberedDataset(1000).fingerprint(), whole);
  EXPECT_NE(SwappedDataset(1000, 0).fingerprint(), whole);
  EXPECT_NE(SwappedDataset(1000, 999).fingerprint(), whole);
  EXPECT_NE(NumberedDataset(999).fingerprint(), whole);
}

TEST(Fingerprint, DamagedSamplesCountAsContent) {
  const std::uint64_t damaged = OneDamaged(1000, 0).fingerprint();
  EXPECT_EQ(OneDamaged(1000, 0).fingerprint(), damaged);
  EXPECT_NE(NumberedDataset(1000).fingerprint(), damaged);
}

TEST(SomeSamples, AreSpreadOverTheDataset) {
  EXPECT_EQ(some_samples(0, 4), Samples{});
  EXPECT_EQ(some_samples(1, 4), Samples{0});
  EXPECT_EQ(some_samples(3, 4), (Samples{0, 1, 2}));
  EXPECT_EQ(some_samples(100, 4), (Samples{0, 33, 66, 99}));
}

}  // namespace
}  // namespace lockstep
