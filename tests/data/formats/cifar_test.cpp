// SPDX-License-Identifier: Apache-2.0
#include "data/formats/cifar.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr std::size_t kPlane = 32 * 32;

// A record whose pixel i of channel c is first + 100 * c + i, in one byte.
Bytes record(const Bytes& labels, int first) {
  Bytes bytes = labels;
  for (std::size_t channel = 0; channel < 3; ++channel)
    for (std::size_t i = 0; i < kPlane; ++i)
      bytes.push_back(static_cast<std::uint8_t>(static_cast<std::size_t>(first) + 100 * channel + i));
  return bytes;
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_image(const Dataset& dataset, std::int64_t index, std::int32_t label, int first) {
  Bytes image(3 * kPlane);
  EXPECT_EQ(dataset.read(index, image), label);
  for (std::size_t i = 0; i < kPlane; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      ASSERT_EQ(image[3 * i + channel],
                static_cast<std::uint8_t>(static_cast<std::size_t>(first) + 100 * channel + i))
          << "pixel " << i << " channel " << channel;
}

// Five training batches; the first one has two records.
void write_cifar10(const TemporaryFolder& folder) {
  folder.write("data_batch_1.bin", record({3}, 7) + record({9}, 8));
  for (int i = 2; i <= 5; ++i)
    folder.write(fmt::format("data_batch_{}.bin", i), record({static_cast<std::uint8_t>(i)}, 10 * i));
  folder.write("test_batch.bin", record({1}, 5));
}

template <typename E>
std::string error_of(const TemporaryFolder& folder, Split split = Split::train) {
  return message_of<E>([&] { open_cifar(folder.path(), split); });
}

TEST(Cifar, ReadsAllFilesOfCifar10ChannelsLast) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  const std::unique_ptr<Dataset> train = open_cifar(folder.path(), Split::train);
  EXPECT_EQ(train->size(), 6);
  EXPECT_EQ(train->image_shape(), (ImageShape{32, 32, 3}));
  EXPECT_EQ(train->classes(), 10);
  EXPECT_EQ(train->class_counts(), (std::vector<std::int64_t>{0, 0, 1, 2, 1, 1, 0, 0, 0, 1}));
  EXPECT_GE(train->memory_bytes(), 6u * 3 * kPlane);
  expect_image(*train, 0, 3, 7);
  expect_image(*train, 1, 9, 8);
  expect_image(*train, 5, 5, 50);
  const std::unique_ptr<Dataset> test =
      open_dataset({.format = "cifar_binary", .path = folder.path(), .synthetic = {}}, Split::test);
  EXPECT_EQ(test->size(), 1);
  expect_image(*test, 0, 1, 5);
}

TEST(Cifar, TakesTheFineLabelsOfCifar100) {
  const TemporaryFolder folder;
  folder.write("train.bin", record({4, 71}, 1) + record({19, 99}, 2));
  folder.write("test.bin", record({0, 0}, 3));
  const std::unique_ptr<Dataset> train = open_cifar(folder.path(), Split::train);
  EXPECT_EQ(train->classes(), 100);
  expect_image(*train, 0, 71, 1);
  expect_image(*train, 1, 99, 2);
  EXPECT_EQ(open_cifar(folder.path(), Split::test)->classes(), 100);
}

TEST(Cifar, FingerprintDependsOnEveryPixelAndLabel) {
  const auto print_of = [](const Bytes& bytes) {
    const TemporaryFolder folder;
    folder.write("test.bin", bytes);
    return open_cifar(folder.path(), Split::test)->fingerprint();
  };
  Bytes bytes = record({4, 71}, 1);
  const std::uint64_t whole = print_of(bytes);
  EXPECT_EQ(print_of(bytes), whole);
  // The fine label, the first pixel, one in the middle, and the last one; the coarse label is not used.
  for (const std::size_t place : {std::size_t{1}, std::size_t{2}, bytes.size() / 2, bytes.size() - 1}) {
    bytes[place] ^= 1;
    EXPECT_NE(print_of(bytes), whole) << place;
    bytes[place] ^= 1;
  }
}

TEST(Cifar, MissingFilesAreNamed) {
  const TemporaryFolder folder;
  expect_parts(error_of<IoError>(folder), {folder.path(), "data.path", "data_batch_1.bin", "train.bin"});
  write_cifar10(folder);
  folder.remove("data_batch_4.bin");
  expect_parts(error_of<IoError>(folder), {"data_batch_4.bin", "No such file"});
  EXPECT_NO_THROW(open_cifar(folder.path(), Split::test));
  std::filesystem::create_symlink("/dev/zero", folder.path() / "data_batch_4.bin");
  expect_parts(error_of<IoError>(folder), {"data_batch_4.bin"});
}

TEST(Cifar, FilesOfBothVersionsAreRefused) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  folder.write("test.bin", record({0, 0}, 3));
  expect_parts(error_of<DataError>(folder), {folder.path(), "data_batch_1.bin", "train.bin"});
}

TEST(Cifar, DamagedFilesAreNamedWithTheOffset) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  const Bytes sound = record({3}, 7);
  for (const std::size_t length : {std::size_t{1}, std::size_t{3072}}) {
    folder.write("data_batch_3.bin", sound + Bytes(sound.begin(), sound.begin() + static_cast<long>(length)));
    expect_parts(error_of<DataError>(folder),
                 {"data_batch_3.bin", "byte 3073", fmt::format(" {} ", length), "of 3073"});
  }
  folder.write("data_batch_3.bin", {});
  expect_parts(error_of<DataError>(folder), {"data_batch_3.bin", "empty"});
  folder.write("data_batch_3.bin", sound + record({10}, 0));
  expect_parts(error_of<DataError>(folder), {"data_batch_3.bin", "byte 3073", "label 10", " 9"});

  std::filesystem::resize_file(folder.path() / "data_batch_3.bin", std::uint64_t{5} << 30);  // sparse
  expect_parts(error_of<DataError>(folder), {"data_batch_3.bin", "5368709120", "4294967296"});

  const TemporaryFolder hundred;
  hundred.write("train.bin", record({20, 0}, 0));
  expect_parts(error_of<DataError>(hundred), {"byte 0", "coarse label 20", " 19"});
  hundred.write("train.bin", record({0, 100}, 0));
  expect_parts(error_of<DataError>(hundred), {"byte 1", "fine label 100", " 99"});
}

}  // namespace
}  // namespace lockstep
