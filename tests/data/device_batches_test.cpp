// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/sample_order.h"
#include "tests/data/numbered_dataset.h"

namespace lockstep {
namespace {

const LoaderOptions kOptions{.batch = 4, .seed = 3, .slots = 2};

// The batches that the loader itself returns.
std::vector<Samples> expected(const Dataset& dataset, int batches) {
  BatchLoader loader(dataset, {}, kOptions);
  std::vector<Samples> taken;
  for (int i = 0; i < batches; ++i) taken.push_back(samples_of(loader.next()));
  return taken;
}

// Runs steps: begin, their micro-batches, prefetch.
class Steps {
 public:
  Steps(DeviceBatches& batches, int micro_batches) : batches_(batches), micro_batches_(micro_batches) {}
  std::vector<Samples> next() {
    batches_.begin(compute_, StepSlot::of(step_));
    std::vector<Samples> samples;
    for (int micro = 0; micro < micro_batches_; ++micro) samples.push_back(samples_of(batches_.next()));
    batches_.prefetch(StepSlot::of(++step_));
    return samples;
  }

 private:
  DeviceBatches& batches_;
  int micro_batches_;
  Stream compute_{{}, StreamUse::compute};
  std::int64_t step_ = 0;
};

TEST(DeviceBatches, ReturnTheBatchesOfTheLoaderInOrder) {
  const NumberedDataset dataset(30);
  const std::vector<Samples> wanted = expected(dataset, 24);
  for (const Staging staging : {Staging::automatic, Staging::always}) {
    for (const int micro_batches : {1, 3, 4}) {
      BatchLoader loader(dataset, {}, kOptions);
      DeviceBatches batches(loader, {.micro_batches = micro_batches, .staging = staging});
      Steps steps(batches, micro_batches);
      std::vector<Samples> seen;
      while (seen.size() < wanted.size()) {
        for (const Samples& samples : steps.next()) seen.push_back(samples);
      }
      EXPECT_EQ(seen, wanted) << micro_batches;
    }
  }
}

TEST(DeviceBatches, PrefetchingIsOptional) {
  const NumberedDataset dataset(30);
  BatchLoader loader(dataset, {}, kOptions);
  DeviceBatches batches(loader, {.staging = Staging::always});
  Stream compute({}, StreamUse::compute);
  std::int64_t step = 0;
  for (const Samples& samples : expected(dataset, 20)) {
    batches.begin(compute, StepSlot::of(step++));
    EXPECT_EQ(samples_of(batches.next()), samples);
  }
}

// The memory of a step's batches is separate from the loader's, which the loader refills. Steps of one slot
// share their memory.
TEST(DeviceBatches, BatchesOfAStepStayValidUntilTheNextStepAndAlternateInMemory) {
  constexpr int kMicroBatches = 2;
  const NumberedDataset dataset(400);
  const std::vector<Samples> wanted = expected(dataset, 40);
  BatchLoader loader(dataset, {}, kOptions);
  DeviceBatches batches(loader, {.micro_batches = kMicroBatches, .staging = Staging::always});
  Stream compute({}, StreamUse::compute);
  std::vector<const void*> places;
  for (std::size_t i = 0; i < wanted.size(); i += kMicroBatches) {
    const auto step = static_cast<std::int64_t>(places.size());
    batches.begin(compute, StepSlot::of(step));
    const Batch& first = batches.next();
    const Batch& second = batches.next();
    EXPECT_THROW(batches.next(), Error);
    batches.prefetch(StepSlot::of(step + 1));
    batches.prefetch(StepSlot::of(step + 1));  // a second call changes nothing
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(samples_of(first), wanted[i]);
    EXPECT_EQ(samples_of(second), wanted[i + 1]);
    places.push_back(first.images.data);
    EXPECT_EQ(places.back(), places[places.size() % 2 == 0 ? 1 : 0]);
  }
  EXPECT_NE(places[0], places[1]);
  EXPECT_EQ(batches.memory_bytes(), 2 * kMicroBatches * loader.batch_bytes());
}

TEST(DeviceBatches, SeekDiscardsPrefetchedBatches) {
  const NumberedDataset dataset(30);
  const std::vector<Samples> wanted = expected(dataset, 6);
  for (const Staging staging : {Staging::automatic, Staging::always}) {
    BatchLoader loader(dataset, {}, kOptions);
    DeviceBatches batches(loader, {.staging = staging});
    Steps steps(batches, 1);
    for (int repeat = 0; repeat < 4; ++repeat) {
      batches.seek(0, 0);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(steps.next()[0], wanted[static_cast<std::size_t>(i)]);
    }
    batches.seek(0, 2);
    EXPECT_EQ(steps.next()[0], wanted[2]);
  }
}

// The second micro-batch of the second step cannot be read. Both steps have the same slot.
TEST(DeviceBatches, SeekDiscardsAPartOfAStep) {
  const std::vector<Samples> wanted = expected(NumberedDataset(30), 2);
  const OneDamaged dataset(30, SampleOrder(30, kOptions.seed, 0)(3 * kOptions.batch));
  LoaderOptions options = kOptions;
  options.on_error = OnError::stop;
  BatchLoader loader(dataset, {}, options);
  DeviceBatches batches(loader, {.micro_batches = 2, .staging = Staging::always});
  Stream compute({}, StreamUse::compute);
  for (int repeat = 0; repeat < 2; ++repeat) {
    batches.begin(compute, StepSlot{});
    for (const Samples& samples : wanted) EXPECT_EQ(samples_of(batches.next()), samples);
    EXPECT_THROW(batches.begin(compute, StepSlot{}), DataError);
    batches.seek(0, 0);
  }
}

// For sanitizers: if a step is late, the copy that waits for its memory is late, too.
TEST(DeviceBatches, CopiesEndBeforeTheirMemoryIsReleased) {
  const NumberedDataset dataset(30);
  BatchLoader loader(dataset, {}, kOptions);
  Stream compute({}, StreamUse::communication);  // runs on a worker thread
  DeviceBatches batches(loader, {.staging = Staging::always});
  batches.begin(compute, StepSlot::of(0));
  compute.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  batches.begin(compute, StepSlot::of(1));
  batches.prefetch(StepSlot::of(2));
}

// Batches prefetched for one slot do not serve another one: batches would be out of order.
TEST(DeviceBatches, AStepMustBeginInThePrefetchedSlot) {
  const NumberedDataset dataset(30);
  BatchLoader loader(dataset, {}, kOptions);
  Stream compute({}, StreamUse::compute);
  DeviceBatches batches(loader, {.staging = Staging::always});
  batches.begin(compute, StepSlot::of(0));
  batches.prefetch(StepSlot::of(1));
  EXPECT_THROW(batches.begin(compute, StepSlot::of(0)), Error);
}

// The step whose batch cannot be read throws, not the step before it, and no batch is lost.
TEST(DeviceBatches, ErrorsAreThrownByTheirOwnStep) {
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
    LoaderOptions options = kOptions;
    options.on_error = OnError::stop;
    BatchLoader loader(dataset, {}, options);
    DeviceBatches batches(loader, {.staging = staging});
    Steps steps(batches, 1);
    steps.next();
    steps.next();
    EXPECT_THROW(steps.next(), DataError);
    EXPECT_THROW(steps.next(), DataError);
  }
}

}  // namespace
}  // namespace lockstep
