// SPDX-License-Identifier: Apache-2.0
#include "data/sets/resident.h"

#include <atomic>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/device_batches.h"
#include "data/formats/synthetic.h"
#include "data/images/resized.h"
#include "tests/data/numbered_dataset.h"

namespace lockstep {
namespace {

// A dataset with undecodable samples that counts its reads.
class Damaged final : public NumberedDataset {
 public:
  Damaged(std::int64_t size, std::set<std::int64_t> broken)
      : NumberedDataset(size), broken_(std::move(broken)) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    ++reads;
    if (broken_.contains(index)) throw DataError(fmt::format("image {} is broken", index));
    return NumberedDataset::read(index, image);
  }
  mutable std::atomic<int> reads = 0;

 private:
  std::set<std::int64_t> broken_;
};

// Every byte of a loader's batches, as on the device.
std::vector<std::string> batches_of(const Dataset& dataset, Shard shard, LoaderOptions options, int count) {
  BatchLoader loader(dataset, shard, options);
  DeviceBatches batches(loader, {.staging = Staging::always});
  Stream compute({}, StreamUse::compute);
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    batches.begin(compute, StepSlot::of(i));
    const Batch& batch = batches.next();
    std::string bytes;
    for (const Tensor& tensor : {batch.images, batch.labels, batch.weights})
      bytes.append(static_cast<const char*>(tensor.data), tensor.bytes());
    bytes.append(reinterpret_cast<const char*>(batch.samples.data()), batch.samples.size_bytes());
    all.push_back(std::move(bytes));
    batches.prefetch(StepSlot::of(i + 1));
  }
  return all;
}

TEST(Resident, ReturnsTheBatchesOfTheDataset) {
  const auto dataset = std::make_shared<Damaged>(37, std::set<std::int64_t>{0, 11, 36});
  for (const int threads : {1, 4}) {
    const std::unique_ptr<Dataset> there = resident(dataset, nullptr, {.threads = threads});
    EXPECT_EQ(there->on_device().size(), 37U * 4);
    const int reads = dataset->reads;
    for (const Tail tail : {Tail::drop, Tail::carry, Tail::repeat, Tail::exact, Tail::pad}) {
      const LoaderOptions options{.batch = 5, .tail = tail, .seed = 4, .threads = threads};
      for (int rank = 0; rank < 2; ++rank) {
        const Shard shard{.rank = rank, .size = 2};
        const auto found = batches_of(*there, shard, options, 9);
        EXPECT_EQ(dataset->reads, reads) << "images must not be read again";
        EXPECT_EQ(found, batches_of(*dataset, shard, options, 9))
            << "tail " << static_cast<int>(tail) << ", rank " << rank;
        dataset->reads = reads;
      }
    }
  }
}

TEST(Resident, UndecodableSamplesAreLeftOutOrThrow) {
  const auto dataset = std::make_shared<Damaged>(8, std::set<std::int64_t>{3});
  const std::unique_ptr<Dataset> there = resident(dataset, nullptr, {});
  for (const OnError on_error : {OnError::leave_out, OnError::stop}) {
    BatchLoader loader(*there, {}, {.batch = 8, .on_error = on_error});
    if (on_error == OnError::stop) {
      EXPECT_THROW(loader.next(), DataError);
      continue;
    }
    loader.next();
    EXPECT_EQ(loader.left_out(), 1);
  }
}

// More than one upload piece, starting at any sample.
TEST(Resident, IsCompleteForEveryStartOfReading) {
  const std::shared_ptr<const Dataset> dataset = open_synthetic(
      {.height = 1024, .width = 1024, .channels = 3, .classes = 4, .train_samples = 13}, Split::train);
  const std::size_t bytes = 1024 * 1024 * 3;
  std::vector<std::uint8_t> image(bytes);
  for (int rank = 0; rank < 3; ++rank) {
    const std::unique_ptr<Dataset> there =
        resident(dataset, nullptr, {.threads = 2, .shard = {.rank = rank, .size = 3}});
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      EXPECT_EQ(there->read(i, {}), dataset->read(i, image));
      EXPECT_EQ(
          std::memcmp(there->on_device().data() + static_cast<std::size_t>(i) * bytes, image.data(), bytes),
          0)
          << i;
    }
  }
}

TEST(Resident, IsReadFromTheFasterCopy) {
  const auto slow = std::make_shared<Damaged>(20, std::set<std::int64_t>{});
  const auto quick = std::make_shared<Damaged>(20, std::set<std::int64_t>{});
  const std::unique_ptr<Dataset> there = resident(slow, quick, {});
  EXPECT_EQ(slow->reads, 0);
  EXPECT_EQ(quick->reads, 20);
  EXPECT_EQ(quick.use_count(), 1);
}

TEST(Resident, MayAllocateWithoutReading) {
  const auto dataset = std::make_shared<Damaged>(20, std::set<std::int64_t>{});
  EXPECT_EQ(resident(dataset, nullptr, {.read = false})->on_device().size(), 80U);
  EXPECT_EQ(dataset->reads, 0);
}

TEST(Resident, UnreadableFilesThrow) {
  struct Gone final : NumberedDataset {
    using NumberedDataset::NumberedDataset;
    std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
      if (index == 5) throw IoError("gone");
      return NumberedDataset::read(index, image);
    }
  };
  EXPECT_THROW(resident(std::make_shared<Gone>(9), nullptr, {.threads = 3}), IoError);
}

TEST(Resident, DatasetsWithRandomCropsAreRefused) {
  const std::shared_ptr<const Dataset> drawn =
      resized(std::make_unique<NumberedDataset>(4), {.size = 2, .random_crop = true});
  EXPECT_THROW(resident(drawn, nullptr, {}), Error);
}

TEST(Resident, NeedsADeviceWithStagedBatches) {
  const std::unique_ptr<Dataset> there = resident(std::make_shared<NumberedDataset>(9), nullptr, {});
  BatchLoader loader(*there, {}, {.batch = 3});
  EXPECT_THROW(DeviceBatches(loader, {}), Error);
}

}  // namespace
}  // namespace lockstep
