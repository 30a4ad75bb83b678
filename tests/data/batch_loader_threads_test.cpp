// SPDX-License-Identifier: Apache-2.0
//
// Threads of a loader: all of them must work on one batch of large images at once, and the batch must not
// depend on which thread made which part.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/batch_loader.h"
#include "data/loader_pace.h"
#include "data/sample_order.h"
#include "tests/data/huge_stacks.h"
#include "tests/data/numbered_dataset.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// Blocks all reads until `readers` of them have begun: if fewer threads read at once, next() never returns.
class MeetingDataset final : public NumberedDataset {
 public:
  MeetingDataset(std::int64_t size, int readers) : NumberedDataset(size), readers_(readers) {}

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::unique_lock lock(mutex_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return begun_ >= readers_; });
    return NumberedDataset::read(index, image);
  }

 private:
  int readers_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int begun_ = 0;
};

// With two slots only one batch is made before the first request.
TEST(BatchLoaderThreads, AllWorkOnOneBatch) {
  for (const int threads : {2, 3, 8, 16}) {
    const MeetingDataset dataset(100, threads);
    BatchLoader loader(dataset, {}, {.batch = 16, .threads = threads, .slots = 2});
    EXPECT_EQ(samples_of(loader.next()).size(), 16u);
  }
}

TEST(BatchLoaderThreads, MoreThreadsThanSamplesWorkOnSeveralBatches) {
  const MeetingDataset dataset(100, 12);
  BatchLoader loader(dataset, {}, {.batch = 4, .threads = 12, .slots = 4});
  EXPECT_EQ(samples_of(loader.next()).size(), 4u);
}

std::vector<std::byte> bytes_of(BatchLoader& loader, int batches) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < batches; ++i) {
    const Batch& batch = loader.next();
    for (const Tensor& tensor : {batch.images, batch.labels, batch.weights}) {
      const auto* data = static_cast<const std::byte*>(tensor.data);
      bytes.insert(bytes.end(), data, data + tensor.bytes());
    }
    const auto samples = std::as_bytes(batch.samples);
    bytes.insert(bytes.end(), samples.begin(), samples.end());
  }
  return bytes;
}

// Batches of 1 to 37 samples divide unevenly, and the last one of an evaluation is padded.
TEST(BatchLoaderThreads, ChangeNoBitOfAnyBatch) {
  const NumberedDataset dataset(250);
  for (const Tail tail : {Tail::drop, Tail::carry, Tail::pad}) {
    for (const std::int64_t batch : {1, 5, 37}) {
      const LoaderOptions options{.batch = batch, .accumulation = 2, .tail = tail, .seed = 4};
      const auto bytes = [&](int threads) {
        LoaderOptions other = options;
        other.threads = threads;
        BatchLoader loader(dataset, {.rank = 1, .size = 2}, other);
        return bytes_of(loader, 20);
      };
      const std::vector<std::byte> expected = bytes(1);
      for (const int threads : {2, 5, 32})
        EXPECT_EQ(bytes(threads), expected) << threads << ", batch " << batch;
    }
  }
}

TEST(BatchLoaderThreads, MoreThreadsNeedNoMoreMemory) {
  const NumberedDataset dataset(100);
  const BatchLoader one(dataset, {}, {.batch = 8});
  const BatchLoader many(dataset, {}, {.batch = 8, .threads = 16});
  EXPECT_EQ(many.memory_bytes(), one.memory_bytes());
}

// Some samples cannot be decoded, and reading one of them always fails.
class DamagedDataset final : public NumberedDataset {
 public:
  DamagedDataset(std::int64_t every, std::int64_t lost) : NumberedDataset(40), every_(every), lost_(lost) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    NumberedDataset::read(index, image);  // has already written into the batch
    if (index == lost_) throw IoError(fmt::format("sample {} is gone", index));
    if (index % every_ == 1) throw DataError(fmt::format("sample {} is damaged", index));
    return static_cast<std::int32_t>(index);
  }

 private:
  std::int64_t every_;
  std::int64_t lost_;
};

TEST(BatchLoaderThreads, AnUndecodableSampleIsLeftOut) {
  const DamagedDataset dataset(3, -1);
  for (const int threads : {1, 4}) {
    testing::internal::CaptureStderr();
    BatchLoader loader(dataset, {}, {.batch = 10, .tail = Tail::pad, .threads = threads});
    for (int round = 0; round < 2; ++round) {
      Samples samples;
      for (int i = 0; i < 4; ++i) {
        const Samples batch = samples_of(loader.next());  // which checks that left-out samples are all zero
        samples.insert(samples.end(), batch.begin(), batch.end());
      }
      for (std::int64_t i = 0; i < 40; ++i) {
        EXPECT_EQ(samples[static_cast<std::size_t>(i)], i % 3 == 1 ? -1 : i);
      }
    }
    EXPECT_EQ(loader.left_out(), 13) << "each left-out sample must count once";
    loader.seek(0, 0);
    const std::string log = testing::internal::GetCapturedStderr();
    std::size_t named = 0;  // reported samples: the first that were found
    for (std::int64_t i = 1; i < 40; i += 3)
      named += log.find(fmt::format("sample {} is damaged", i)) != std::string::npos;
    EXPECT_EQ(named, 5u) << log;
    EXPECT_NE(log.find("10 samples"), std::string::npos) << log;
    EXPECT_EQ(std::ranges::count(log, '\n'), 7)
        << "expected 5 samples, a notice that no more are named, and the total of 10:\n"
        << log;
  }
}

TEST(BatchLoaderThreads, WeightsOfLeftOutSamplesGoToTheOtherSamples) {
  const DamagedDataset dataset(9, -1);
  for (const Tail tail :
       {Tail::drop, Tail::carry, Tail::exact}) {  // exact: a last batch of 4, whose samples weigh more
    for (const int threads : {1, 4}) {
      BatchLoader loader(dataset, {}, {.batch = 12, .tail = tail, .threads = threads});
      for (int i = 0; i < 4; ++i) {
        const std::span<const float> weights = loader.next().weights.as<float>();
        EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 12, 1e-5) << "batch " << i;
        const float most = *std::ranges::max_element(weights);
        const auto left_out = std::ranges::count(weights, 0.0f);
        EXPECT_EQ(std::ranges::count(weights, most), 12 - left_out)
            << "all other samples must have the same weight";
      }
      EXPECT_GT(loader.left_out(), 0);
    }
  }
}

// A last batch of 2 samples in 5 places contains one of them three times and the other twice.
TEST(BatchLoaderThreads, ADamagedSampleOfAShortBatchCountsOnceForAllCopies) {
  for (const int threads : {1, 4}) {
    for (std::int64_t damaged = 0; damaged < 7; ++damaged) {
      const OneDamaged dataset(7, damaged);
      BatchLoader loader(dataset, {}, {.batch = 5, .tail = Tail::exact, .threads = threads});
      for (int step = 0; step < 6; ++step) {  // three epochs
        const std::span<const float> weights = loader.next().weights.as<float>();
        EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 5, 1e-5) << "step " << step;
      }
      EXPECT_EQ(loader.left_out(), 1);
    }
  }
}

TEST(BatchLoaderThreads, AShortBatchWhoseOnlySampleIsDamagedHasTheEpochsFirstSamples) {
  constexpr std::int64_t kSize = 6;
  const std::int64_t last = SampleOrder(kSize, 0, 0)(kSize - 1);
  const OneDamaged dataset(kSize, last);
  for (const int threads : {1, 4}) {
    BatchLoader loader(dataset, {}, {.batch = 5, .tail = Tail::exact, .threads = threads});
    loader.next();
    const Batch& batch = loader.next();
    const std::span<const std::int32_t> labels = batch.labels.as<std::int32_t>();
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(batch.weights.as<float>()[static_cast<std::size_t>(i)], 0);
      EXPECT_EQ(labels[static_cast<std::size_t>(i)], SampleOrder(kSize, 0, 0)(i));
    }
    EXPECT_EQ(loader.left_out(), 1);
  }
}

TEST(BatchLoaderThreads, ADamagedSampleIsLeftOutOfABatchOfOne) {
  constexpr std::int64_t kSize = 40;
  const SampleOrder order(kSize, 0, 0);
  const OneDamaged dataset(kSize, order(3));
  for (const int threads : {1, 4}) {
    BatchLoader loader(dataset, {}, {.batch = 1, .threads = threads});
    for (std::int64_t i = 0; i < kSize; ++i) {
      const Batch& batch = loader.next();
      EXPECT_EQ(batch.labels.as<std::int32_t>()[0], order(i == 3 ? 0 : i));
      EXPECT_EQ(batch.weights.as<float>()[0], i == 3 ? 0.0f : 1.0f);
    }
    EXPECT_EQ(loader.left_out(), 1);
  }
}

TEST(BatchLoaderThreads, AnUndecodableSampleThrowsIfOnErrorIsStop) {
  const DamagedDataset dataset(7, -1);
  for (const int threads : {1, 4}) {
    BatchLoader loader(dataset, {},
                       {.batch = 5, .tail = Tail::pad, .on_error = OnError::stop, .threads = threads});
    EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "sample 1 is damaged");
    loader.seek(0, 2);  // samples 10 to 14 are sound
    EXPECT_EQ(samples_of(loader.next()), (Samples{10, 11, 12, 13, 14}));
    EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "sample 15 is damaged");
    EXPECT_EQ(loader.left_out(), 0);
  }
}

// The error is that of the first damaged sample in the batch's order, whichever thread fails first.
TEST(BatchLoaderThreads, ABatchOfMostlyDamagedSamplesIsAnError) {
  const DamagedDataset dataset(1'000, 25);
  class Worse final : public NumberedDataset {
   public:
    Worse() : NumberedDataset(40) {}
    std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
      if (index >= 14) throw DataError(fmt::format("sample {} is damaged", index));
      return NumberedDataset::read(index, image);
    }
  } const worse;
  for (const int threads : {1, 4}) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      BatchLoader lost(dataset, {}, {.batch = 10, .tail = Tail::pad, .threads = threads});
      for (int i = 0; i < 2; ++i) lost.next();
      EXPECT_EQ(message_of<IoError>([&] { lost.next(); }), "sample 25 is gone");
      BatchLoader damaged(worse, {}, {.batch = 32, .tail = Tail::pad, .threads = threads});
      EXPECT_EQ(message_of<DataError>([&] { damaged.next(); }), "sample 14 is damaged") << "18 of 32 samples";
    }
  }
}

class AllDamaged final : public NumberedDataset {
 public:
  using NumberedDataset::NumberedDataset;
  std::int32_t read(std::int64_t, std::span<std::uint8_t>) const override { throw DataError("damaged"); }
};

// The limit applies to 32 samples, or to the whole dataset.
TEST(BatchLoaderThreads, SmallBatchesOfMostlyDamagedSamplesAreJudgedTogether) {
  struct Case {
    std::int64_t samples, batch;
    int returned;  // batches before the error
  };
  for (const Case& each : {Case{40, 1, 31}, Case{40, 10, 3}, Case{40, 40, 0}, Case{7, 1, 6}, Case{7, 2, 3}}) {
    const AllDamaged lost(each.samples);
    for (const Tail tail : {Tail::carry, Tail::pad}) {
      for (const int threads : {1, 4}) {
        BatchLoader loader(lost, {}, {.batch = each.batch, .tail = tail, .threads = threads});
        for (int i = 0; i < each.returned; ++i)
          EXPECT_EQ(std::ranges::count(loader.next().weights.as<float>(), 0.0f), each.batch);
        for (int again = 0; again < 2; ++again)
          EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "damaged") << "batch " << each.batch;
      }
    }
  }
}

TEST(BatchLoaderThreads, PaddingDoesNotHideDamagedSamples) {
  const AllDamaged lost(20);
  for (const int threads : {1, 4}) {
    BatchLoader loader(lost, {}, {.batch = 64, .tail = Tail::pad, .threads = threads});
    EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "damaged");
  }
}

// Each sample takes time and nothing computes: the caller always waits for batches.
class SlowDataset final : public NumberedDataset {
 public:
  SlowDataset() : NumberedDataset(1000) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return NumberedDataset::read(index, image);
  }
};

TEST(BatchLoaderThreads, IncreaseWhileTheCallerWaitsAndBatchesStayTheSame) {
  const SlowDataset dataset;
  BatchLoader loader(dataset, {}, {.batch = 8, .threads = 0, .most_threads = 4});
  BatchLoader one(dataset, {}, {.batch = 8});
  std::vector<Samples> expected;
  for (int i = 0; i < 100; ++i) expected.push_back(samples_of(one.next()));
  EXPECT_EQ(loader.threads(), 1);
  int most = 1;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(samples_of(loader.next()), expected[static_cast<std::size_t>(i)]) << i;
    EXPECT_GE(loader.threads(), most);
    most = loader.threads();
  }
  EXPECT_GT(most, 1);
  EXPECT_LE(most, 4);
  EXPECT_EQ(one.threads(), 1);
  loader.seek(0, 3);
  one.seek(0, 3);
  EXPECT_EQ(samples_of(loader.next()), samples_of(one.next()));
}

TEST(BatchLoaderThreads, DoNotIncreaseBeyondWhatTheSystemAllows) {
  const SlowDataset dataset;
  BatchLoader loader(dataset, {}, {.batch = 8, .threads = 0, .most_threads = 4});
  BatchLoader one(dataset, {}, {.batch = 8});
  std::vector<Samples> expected;
  for (int i = 0; i < 40; ++i) expected.push_back(samples_of(one.next()));
  const HugeStacks stacks;
  testing::internal::CaptureStderr();
  for (const Samples& samples : expected) EXPECT_EQ(samples_of(loader.next()), samples);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(lines_naming(log, "warning"), '\n'), 1) << log;
  EXPECT_EQ(loader.threads(), 1);
}

TEST(BatchLoaderThreads, NoThreadAtAllIsAnIoError) {
  const NumberedDataset dataset(40);
  const HugeStacks stacks;
  EXPECT_NE(message_of<IoError>([&] { BatchLoader(dataset, {}, {.batch = 8, .threads = 4}); }), "");
}

TEST(LoaderPace, WantsEnoughThreadsToHideTheLoadingTime) {
  // Making a batch takes three times as long as computing on it.
  const LoaderPace slow{.threads = 1, .seconds = 3, .waited_seconds = 2, .processor_seconds = 3};
  EXPECT_EQ(threads_wanted(slow, 64), 4);
  EXPECT_EQ(threads_wanted(slow, 3), 3);
  EXPECT_EQ(threads_wanted(slow, 1), 1);
  // The waits are negligible, or they are waits for a disk.
  EXPECT_EQ(threads_wanted({.threads = 2, .seconds = 1, .waited_seconds = 0.004, .processor_seconds = 1}, 64),
            2);
  EXPECT_EQ(threads_wanted({.threads = 2, .seconds = 1, .waited_seconds = 0.5, .processor_seconds = 0.1}, 64),
            3);
  // The caller does not compute.
  EXPECT_EQ(threads_wanted({.threads = 2, .seconds = 1, .waited_seconds = 1, .processor_seconds = 1}, 16),
            16);
  EXPECT_EQ(threads_wanted({.threads = 2, .seconds = 0}, 16), 2);
  EXPECT_EQ(threads_wanted({.threads = 8, .seconds = 1, .waited_seconds = 1}, 4), 8)
      << "threads are never removed";
}

}  // namespace
}  // namespace lockstep
