// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/data/numbered_dataset.h"

namespace lockstep {
namespace {

constexpr LoaderOptions kOptions{.batch = 4, .seed = 3, .slots = 2};

// Batches as the loader itself gives them.
std::vector<Samples> expected(const Dataset& dataset, int batches) {
  BatchLoader loader(dataset, {}, kOptions);
  std::vector<Samples> taken;
  for (int i = 0; i < batches; ++i) taken.push_back(samples_of(loader.next()));
  return taken;
}

// As a step does: next, work, prefetch.
Samples step(DeviceBatches& batches, Stream& compute) {
  const Samples samples = samples_of(batches.next(compute));
  batches.prefetch();
  return samples;
}

TEST(DeviceBatches, GiveTheLoadersBatchesInOrder) {
  const NumberedDataset dataset(30);
  const std::vector<Samples> wanted = expected(dataset, 20);
  for (const Staging staging : {Staging::automatic, Staging::always}) {
    for (const bool prefetches : {true, false}) {
      BatchLoader loader(dataset, {}, kOptions);
      DeviceBatches batches(loader, {}, staging);
      Stream compute({}, StreamUse::compute);
      for (const Samples& samples : wanted) {
        const Batch& batch = batches.next(compute);
        compute.synchronize();
        EXPECT_EQ(samples_of(batch), samples);
        if (prefetches) batches.prefetch();
      }
    }
  }
}

// Its memory is not the loader's, which is filled again meanwhile.
TEST(DeviceBatches, AStagedBatchStaysUntilTheNextIsTaken) {
  const NumberedDataset dataset(400);
  const std::vector<Samples> wanted = expected(dataset, 50);
  BatchLoader loader(dataset, {}, kOptions);
  DeviceBatches batches(loader, {}, Staging::always);
  Stream compute({}, StreamUse::compute);
  for (const Samples& samples : wanted) {
    const Batch& batch = batches.next(compute);
    batches.prefetch();
    batches.prefetch();  // once is enough
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(samples_of(batch), samples);
  }
  EXPECT_EQ(batches.memory_bytes(), 2 * loader.batch_bytes());
}

TEST(DeviceBatches, SeekForgetsWhatWasCopiedAhead) {
  const NumberedDataset dataset(30);
  const std::vector<Samples> wanted = expected(dataset, 3);
  for (const Staging staging : {Staging::automatic, Staging::always}) {
    BatchLoader loader(dataset, {}, kOptions);
    DeviceBatches batches(loader, {}, staging);
    Stream compute({}, StreamUse::compute);
    for (int repeat = 0; repeat < 4; ++repeat) {
      batches.seek(0, 0);
      for (const Samples& samples : wanted) EXPECT_EQ(step(batches, compute), samples);
    }
    batches.seek(0, 2);
    EXPECT_EQ(step(batches, compute), wanted[2]);
  }
}

// An error belongs to the batch that could not be read, not to the one before it.
TEST(DeviceBatches, ErrorsAreThrownByTheirOwnBatch) {
  struct Broken final : NumberedDataset {
    using NumberedDataset::NumberedDataset;
    std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
      if (++reads > 2 * kOptions.batch) throw DataError("broken");
      return NumberedDataset::read(index, image);
    }
    mutable std::atomic<int> reads = 0;
  };
  for (const Staging staging : {Staging::automatic, Staging::always}) {
    const Broken dataset(30);
    BatchLoader loader(dataset, {}, kOptions);
    DeviceBatches batches(loader, {}, staging);
    Stream compute({}, StreamUse::compute);
    step(batches, compute);
    step(batches, compute);
    EXPECT_THROW(step(batches, compute), DataError);
    EXPECT_THROW(step(batches, compute), DataError);
  }
}

}  // namespace
}  // namespace lockstep
