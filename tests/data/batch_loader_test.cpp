// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/sample_order.h"
#include "kernels/host_augmentation.h"
#include "tests/data/numbered_dataset.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Takes the next micro-batches.
std::vector<Samples> take(BatchLoader& loader, std::int64_t micro_batches) {
  std::vector<Samples> taken;
  for (std::int64_t i = 0; i < micro_batches; ++i) taken.push_back(samples_of(loader.next()));
  return taken;
}

// The samples that all ranks see in the first `epochs` epochs, in the sample order's positions.
Samples seen(const Dataset& dataset, int ranks, LoaderOptions options, std::int64_t epochs) {
  std::vector<std::vector<Samples>> by_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    BatchLoader loader(dataset, {.rank = rank, .size = ranks}, options);
    std::int64_t steps = 0;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) steps += loader.steps_in_epoch(epoch);
    by_rank.push_back(take(loader, steps * options.accumulation));
  }
  Samples all;
  const auto micros = static_cast<std::size_t>(options.accumulation);
  for (std::size_t step = 0; step < by_rank[0].size() / micros; ++step) {
    for (const std::vector<Samples>& batches : by_rank) {
      for (std::size_t micro = 0; micro < micros; ++micro) {
        const Samples& batch = batches[step * micros + micro];
        all.insert(all.end(), batch.begin(), batch.end());
      }
    }
  }
  return all;
}

TEST(BatchLoader, GivesTensorsOfTheWholeBatch) {
  const NumberedDataset dataset(20);
  BatchLoader loader(dataset, {}, {.batch = 5});
  const Batch& batch = loader.next();
  EXPECT_EQ(batch.images.shape, (Shape{5, 2, 1, 2}));
  EXPECT_EQ(batch.images.dtype, DType::u8);
  EXPECT_EQ(batch.labels.shape, Shape{5});
  EXPECT_EQ(batch.labels.dtype, DType::i32);
  EXPECT_EQ(batch.weights.shape, Shape{5});
  EXPECT_EQ(batch.weights.dtype, DType::f32);
}

TEST(BatchLoader, SamplesContainTheirEpoch) {
  const NumberedDataset dataset(10);
  const auto epochs = [&](Tail tail, std::int64_t batches) {
    BatchLoader loader(dataset, {}, {.batch = 4, .tail = tail});
    std::vector<std::int32_t> found;
    for (std::int64_t i = 0; i < batches; ++i) {
      for (const SampleId& sample : loader.next().samples) found.push_back(sample.epoch);
    }
    return found;
  };
  EXPECT_EQ(epochs(Tail::drop, 3), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(epochs(Tail::carry, 3), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(epochs(Tail::repeat, 4),
            (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(epochs(Tail::pad, 3), std::vector<std::int32_t>(12, 0));
}

class BatchLoaderRanks : public testing::TestWithParam<int> {};

TEST_P(BatchLoaderRanks, DropReturnsNoSampleTwiceInAnEpoch) {
  const NumberedDataset dataset(103);
  const LoaderOptions options{.batch = 4, .seed = 9};
  const std::int64_t global = 4 * GetParam();
  const BatchLoader loader(dataset, {.rank = 0, .size = GetParam()}, options);
  EXPECT_EQ(loader.global_batch(), global);
  EXPECT_EQ(loader.steps_in_epoch(0), 103 / global);
  EXPECT_EQ(loader.dropped_samples(), 103 % global);
  EXPECT_EQ(loader.repeated_samples(), 0);
  const std::int64_t per_epoch = 103 / global * global;
  const Samples samples = seen(dataset, GetParam(), options, 3);
  ASSERT_EQ(static_cast<std::int64_t>(samples.size()), 3 * per_epoch);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const SampleOrder order(103, 9, epoch);
    for (std::int64_t i = 0; i < per_epoch; ++i) {
      ASSERT_EQ(samples[epoch * per_epoch + i], order(i)) << "epoch " << epoch << ", position " << i;
    }
  }
}

TEST_P(BatchLoaderRanks, CarryReturnsEverySample) {
  const NumberedDataset dataset(103);
  const LoaderOptions options{.batch = 4, .tail = Tail::carry, .seed = 9};
  const std::int64_t global = 4 * GetParam();
  const BatchLoader loader(dataset, {.rank = 0, .size = GetParam()}, options);
  for (std::int64_t epoch = 0; epoch < 7; ++epoch) {
    EXPECT_EQ(loader.steps_in_epoch(epoch), (epoch + 1) * 103 / global - epoch * 103 / global);
  }
  const Samples samples = seen(dataset, GetParam(), options, 3);
  ASSERT_EQ(static_cast<std::int64_t>(samples.size()), 3 * 103 / global * global);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ASSERT_EQ(samples[i], SampleOrder(103, 9, i / 103)(static_cast<std::int64_t>(i % 103)))
        << "position " << i;
  }
}

TEST_P(BatchLoaderRanks, RepeatFillsTheLastBatchWithTheEpochsFirstSamples) {
  const LoaderOptions options{.batch = 4, .tail = Tail::repeat, .seed = 9};
  const std::int64_t global = 4 * GetParam();
  for (const std::int64_t size : {global, global + 1, std::int64_t{103}, 5 * global}) {
    const NumberedDataset dataset(size);
    const BatchLoader loader(dataset, {.rank = 0, .size = GetParam()}, options);
    const std::int64_t steps = (size + global - 1) / global;
    EXPECT_EQ(loader.steps_in_epoch(2), steps);
    EXPECT_EQ(loader.repeated_samples(), steps * global - size);
    EXPECT_EQ(loader.dropped_samples(), 0);
    Samples expected;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      const SampleOrder order(size, 9, epoch);
      for (std::int64_t i = 0; i < steps * global; ++i) expected.push_back(order(i % size));
    }
    EXPECT_EQ(seen(dataset, GetParam(), options, 3), expected) << size;
  }
}

// Samples come in the order of the epoch, each once, as for one rank. A short batch is filled with samples of
// the same micro-batch, or of the epoch's beginning, with weight 0.
TEST_P(BatchLoaderRanks, ExactReturnsEverySampleOnceAndDistributesEvenly) {
  const LoaderOptions options{.batch = 4, .accumulation = 2, .tail = Tail::exact, .seed = 9};
  const std::int64_t global = 8 * GetParam();
  for (const std::int64_t left : {std::int64_t{0}, std::int64_t{1}, global / 2, global - 1}) {
    const std::int64_t size = 3 * global + left;
    const NumberedDataset dataset(size);
    const std::int64_t steps = left > 0 ? 4 : 3;
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    for (int rank = 0; rank < GetParam(); ++rank)
      loaders.push_back(
          std::make_unique<BatchLoader>(dataset, Shard{.rank = rank, .size = GetParam()}, options));
    EXPECT_EQ(loaders[0]->steps_in_epoch(1), steps);
    EXPECT_EQ(loaders[0]->last_batch_samples(), left);
    EXPECT_EQ(loaders[0]->dropped_samples() + loaders[0]->repeated_samples(), 0);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      const SampleOrder order(size, 9, epoch);
      Samples taken;
      for (std::int64_t step = 0; step < steps; ++step) {
        double weights = 0;
        std::int64_t least = options.batch, most = 0;
        for (const auto& loader : loaders) {
          for (int micro = 0; micro < 2; ++micro) {
            const Batch& batch = loader->next();
            const std::size_t before = taken.size();
            for (std::size_t i = 0; i < 4; ++i) {
              const float weight = batch.weights.as<float>()[i];
              const std::int32_t sample = batch.labels.as<std::int32_t>()[i];
              EXPECT_EQ(batch.samples[i].index, sample);
              EXPECT_EQ(batch.samples[i].epoch, static_cast<std::int32_t>(epoch));
              weights += weight;
              if (weight > 0) {
                EXPECT_EQ(weight, step == 3 ? static_cast<float>(global) / static_cast<float>(left) : 1.0f);
                taken.push_back(sample);
              } else if (taken.size() > before) {
                EXPECT_NE(std::find(taken.begin() + static_cast<std::ptrdiff_t>(before), taken.end(), sample),
                          taken.end())
                    << "the filling sample belongs to another micro-batch";
              } else {
                EXPECT_EQ(sample, order(static_cast<std::int64_t>(i)));
              }
            }
            least = std::min(least, std::ssize(taken) - static_cast<std::int64_t>(before));
            most = std::max(most, std::ssize(taken) - static_cast<std::int64_t>(before));
          }
        }
        EXPECT_NEAR(weights, static_cast<double>(global), 1e-4 * static_cast<double>(global))
            << "the mean weight must be one";
        EXPECT_LE(most - least, 1) << "samples must be distributed evenly";
      }
      ASSERT_EQ(std::ssize(taken), size);
      for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(taken[static_cast<std::size_t>(i)], order(i)) << i;
    }
  }
}

TEST_P(BatchLoaderRanks, PadReturnsEverySampleOnce) {
  for (const std::int64_t size : {1, 3, 4, 60, 103, 120}) {
    const NumberedDataset dataset(size);
    const LoaderOptions options{.batch = 4, .tail = Tail::pad, .seed = 9};
    const std::int64_t global = 4 * GetParam();
    const std::int64_t steps = (size + global - 1) / global;
    Samples expected(static_cast<std::size_t>(steps * global), -1);
    std::iota(expected.begin(), expected.begin() + size, 0);
    EXPECT_EQ(seen(dataset, GetParam(), options, 1), expected) << size;
    Samples twice = expected;
    twice.insert(twice.end(), expected.begin(), expected.end());
    EXPECT_EQ(seen(dataset, GetParam(), options, 2), twice) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, BatchLoaderRanks, testing::Values(1, 2, 3, 5));

TEST(BatchLoader, PaddingIsAllZero) {
  const NumberedDataset dataset(6);
  BatchLoader loader(dataset, {}, {.batch = 4, .tail = Tail::pad});
  float weight = 0;
  for (int step = 0; step < 8; ++step) {  // slots that held samples before hold padding now
    const Batch& batch = loader.next();
    for (std::size_t i = 0; i < 4; ++i) weight += batch.weights.as<float>()[i];
    if (step % 2 == 0) continue;
    for (std::size_t i = 2; i < 4; ++i) {
      EXPECT_EQ(batch.weights.as<float>()[i], 0.0f);
      EXPECT_EQ(batch.labels.as<std::int32_t>()[i], 0);
    }
    for (std::size_t i = 8; i < 16; ++i) EXPECT_EQ(batch.images.as<std::uint8_t>()[i], 0);
  }
  EXPECT_EQ(weight, 4 * 6.0f);
}

// k ranks with accumulation j see the micro-batches of one rank with accumulation k * j.
TEST(BatchLoader, RanksAndAccumulationAreInterchangeable) {
  const NumberedDataset dataset(250);
  for (const Tail tail : {Tail::drop, Tail::carry, Tail::repeat, Tail::pad}) {
    LoaderOptions options{.batch = 3, .accumulation = 12, .tail = tail, .seed = 4};
    const Samples alone = seen(dataset, 1, options, 3);
    for (const int ranks : {2, 3, 4, 6, 12}) {
      options.accumulation = 12 / ranks;
      EXPECT_EQ(seen(dataset, ranks, options, 3), alone) << ranks << " ranks";
    }
  }
}

// Batch norm never gets an empty or a short batch: a training batch is full of real samples, or the
// configuration is refused.
TEST(BatchLoader, TrainingBatchesAreNeverShort) {
  std::mt19937 random(7);
  const auto up_to = [&](std::uint32_t most) { return static_cast<std::int64_t>(random() % most + 1); };
  int refused = 0;
  for (int turn = 0; turn < 300 / kOneOf; ++turn) {
    const NumberedDataset dataset(up_to(200));
    const int ranks = static_cast<int>(up_to(5));
    LoaderOptions options{.batch = up_to(9), .accumulation = up_to(4), .seed = random()};
    options.tail = std::array{Tail::drop, Tail::carry, Tail::repeat}[random() % 3];
    options.threads = static_cast<int>(up_to(3));
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        BatchLoader loader(dataset, {.rank = rank, .size = ranks}, options);
        const std::int64_t steps = loader.steps_in_epoch(0) + loader.steps_in_epoch(1);
        ASSERT_GT(loader.steps_in_epoch(0), 0);
        for (const Samples& batch : take(loader, steps * options.accumulation)) {
          ASSERT_EQ(std::ssize(batch), options.batch);
          ASSERT_EQ(std::ranges::count(batch, -1), 0)
              << "a training batch must not contain samples of weight zero";
        }
      } catch (const ConfigError&) {
        EXPECT_LT(dataset.size(), ranks * options.batch * options.accumulation);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50 / kOneOf);
}

TEST(BatchLoader, BatchesDoNotDependOnThreadsAndSlots) {
  const NumberedDataset dataset(250);
  const LoaderOptions options{.batch = 3, .accumulation = 2, .tail = Tail::carry, .seed = 4};
  const Samples expected = seen(dataset, 2, options, 5);
  for (const int threads : {1, 2, 3, 8}) {
    for (const int slots : {2, 3, 5}) {
      LoaderOptions other = options;
      other.threads = threads;
      other.slots = slots;
      EXPECT_EQ(seen(dataset, 2, other, 5), expected) << threads << " threads, " << slots << " slots";
    }
  }
}

TEST(BatchLoader, TheSeedChangesTheOrder) {
  const NumberedDataset dataset(250);
  EXPECT_NE(seen(dataset, 1, {.batch = 5, .seed = 1}, 1), seen(dataset, 1, {.batch = 5, .seed = 2}, 1));
}

TEST(BatchLoader, SeekEqualsRunningToTheSameStep) {
  const NumberedDataset dataset(103);
  for (const Tail tail : {Tail::drop, Tail::carry, Tail::repeat, Tail::pad}) {
    const LoaderOptions options{.batch = 4, .accumulation = 2, .tail = tail, .seed = 3, .threads = 3};
    BatchLoader running(dataset, {.rank = 1, .size = 2}, options);
    BatchLoader seeking(dataset, {.rank = 1, .size = 2}, options);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      for (std::int64_t step = 0; step < running.steps_in_epoch(epoch); ++step) {
        const std::vector<Samples> expected = take(running, 2);
        seeking.seek(epoch, step);
        ASSERT_EQ(take(seeking, 2), expected) << "epoch " << epoch << ", step " << step;
      }
    }
    seeking.seek(0, 0);  // backwards
    BatchLoader fresh(dataset, {.rank = 1, .size = 2}, options);
    EXPECT_EQ(take(seeking, 40), take(fresh, 40));
  }
}

TEST(BatchLoader, IsAtTheBeginningUntilNextOrSeek) {
  const NumberedDataset dataset(30);
  BatchLoader loader(dataset, {}, {.batch = 4});
  EXPECT_TRUE(loader.at_beginning());
  loader.next();
  EXPECT_FALSE(loader.at_beginning());
  loader.seek(0, 0);
  EXPECT_TRUE(loader.at_beginning());
  loader.seek(0, 1);
  EXPECT_FALSE(loader.at_beginning());
}

// The state does not depend on the number of ranks: a run resumed on another number continues with the same
// samples.
TEST(BatchLoader, ResumesOnAnotherNumberOfRanks) {
  const NumberedDataset dataset(200);
  const auto one_step = [&](int ranks, std::int64_t accumulation) {
    Samples all;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchLoader loader(dataset, {.rank = rank, .size = ranks}, {.batch = 2, .accumulation = accumulation});
      loader.seek(2, 5);
      for (const Samples& batch : take(loader, accumulation))
        all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  };
  const Samples alone = one_step(1, 8);
  EXPECT_EQ(one_step(2, 4), alone);
  EXPECT_EQ(one_step(8, 1), alone);
}

TEST(BatchLoader, AnotherGlobalBatchBeginsAtTheFirstUnusedSample) {
  const NumberedDataset dataset(103);
  const auto after = [&](Tail tail, std::int64_t batch, std::int64_t epoch, std::int64_t steps,
                         std::int64_t global_batch) {
    return BatchLoader(dataset, {}, {.batch = batch, .tail = tail})
        .step_after(epoch, steps, global_batch)
        .value_or(-1);
  };
  EXPECT_EQ(after(Tail::drop, 8, 3, 10, 4), 5);
  EXPECT_EQ(after(Tail::drop, 8, 3, 11, 4), -1);
  EXPECT_EQ(after(Tail::drop, 4, 3, 5, 8), 10);
  EXPECT_EQ(after(Tail::drop, 8, 3, 0, 4), 0);
  EXPECT_EQ(after(Tail::drop, 4, 0, 12, 8), 25) << "the whole epoch is over";
  EXPECT_EQ(after(Tail::exact, 8, 0, 26, 4), 13) << "the whole epoch is over";
  // With carried samples, epochs begin at step 25 and 51 of 4 samples, and at step 12 and 25 of 8.
  EXPECT_EQ(after(Tail::carry, 8, 1, 1, 4), 1);
  EXPECT_EQ(after(Tail::carry, 8, 1, 2, 4), -1);
  EXPECT_EQ(after(Tail::carry, 8, 1, 3, 4), 2);
  EXPECT_EQ(after(Tail::carry, 8, 1, 0, 4), 0) << "the epoch before is over";
  EXPECT_EQ(after(Tail::carry, 4, 1, 0, 8), 0) << "the epoch before is over";
}

TEST(BatchLoader, CountsTheSamplesOfAShortLastBatch) {
  const NumberedDataset dataset(103);
  const BatchLoader exact(dataset, {}, {.batch = 8, .tail = Tail::exact}),
      drop(dataset, {}, {.batch = 8, .tail = Tail::drop});
  EXPECT_EQ(exact.samples_in(0, 13), 103);
  EXPECT_EQ(exact.samples_in(12, 13), 7);
  EXPECT_EQ(exact.samples_in(3, 12), 72);
  EXPECT_EQ(exact.samples_in(13, 13), 0);
  EXPECT_EQ(drop.samples_in(0, 12), 96);
}

TEST(BatchLoader, ABatchStaysUntouchedUntilTheNextCall) {
  const NumberedDataset dataset(1000);
  BatchLoader loader(dataset, {}, {.batch = 2, .threads = 2, .slots = 2});
  std::set<const void*> memory;
  for (int i = 0; i < 100; ++i) {
    const Batch& batch = loader.next();
    memory.insert(batch.images.data);
    const Samples before = samples_of(batch);
    BatchLoader other(dataset, {}, {.batch = 2});  // time for the threads to do damage
    take(other, 3);
    EXPECT_EQ(samples_of(batch), before);
  }
  EXPECT_EQ(memory.size(), 2u);  // the slots, reused
}

TEST(BatchLoader, ADatasetSmallerThanAGlobalBatchIsAConfigurationError) {
  const NumberedDataset dataset(47);
  for (const Tail tail : {Tail::drop, Tail::carry, Tail::repeat}) {
    const LoaderOptions options{.batch = 4, .accumulation = 4, .tail = tail};
    const std::string message =
        message_of<ConfigError>([&] { const BatchLoader loader(dataset, {.rank = 2, .size = 3}, options); });
    expect_parts(message, {"47 samples", "train.batch", "train.accumulation"});
    EXPECT_TRUE(std::regex_search(message, std::regex(R"(global batch\D*\b48\b)"))) << message;
  }
  EXPECT_NO_THROW(BatchLoader(NumberedDataset(48), {.rank = 2, .size = 3}, {.batch = 4, .accumulation = 4}));
}

TEST(BatchLoader, AnExactTailMayBeTheOnlyBatch) {
  const NumberedDataset dataset(3);
  BatchLoader loader(dataset, {.rank = 1, .size = 2}, {.batch = 4, .tail = Tail::exact, .seed = 9});
  EXPECT_EQ(loader.steps_in_epoch(0), 1);
  EXPECT_EQ(loader.last_batch_samples(), 3);
  const SampleOrder order(3, 9, 0);
  const Batch& batch = loader.next();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(batch.samples[i].index, order(static_cast<std::int64_t>(1 + i % 2)));
    EXPECT_EQ(batch.weights.as<float>()[i], i < 2 ? 8.0f / 3.0f : 0.0f);
  }
}

TEST(BatchLoader, RefusesMoreSamplesThanCanBeNumbered) {
  expect_parts(message_of<ConfigError>(
                   [] { const BatchLoader loader(NumberedDataset(std::int64_t{1} << 31), {}, {}); }),
               {"2147483648 samples", "2147483647"});
}

// Throws for samples 40 and above. The message contains current_rank().
class BreakingDataset final : public NumberedDataset {
 public:
  BreakingDataset() : NumberedDataset(100) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (index >= 40) throw DataError(fmt::format("rank {}: sample {} is broken", current_rank(), index));
    return NumberedDataset::read(index, image);
  }
};

TEST(BatchLoader, AnErrorIsThrownWithItsOwnBatch) {
  const BreakingDataset dataset;
  const RankScope scope(3);
  for (const int threads : {1, 4}) {
    BatchLoader loader(dataset, {},
                       {.batch = 8, .tail = Tail::pad, .on_error = OnError::stop, .threads = threads});
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(samples_of(loader.next())[0], 8 * i);
      for (int again = 0; again < 3; ++again)
        EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "rank 3: sample 40 is broken");
      loader.seek(0, 0);  // batches read earlier can be read again
    }
  }
}

// Blocks all reads until it is opened.
class ClosedDataset final : public NumberedDataset {
 public:
  ClosedDataset() : NumberedDataset(100) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return NumberedDataset::read(index, image);
  }
  void wait_for_readers(int readers) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= readers; });
  }
  void open() const {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  mutable bool open_ = false;
};

TEST(BatchLoader, PrefetchesBeforeTheFirstCallOfNext) {
  const ClosedDataset dataset;
  BatchLoader loader(dataset, {}, {.batch = 1, .threads = 3, .slots = 4});
  dataset.wait_for_readers(3);
  dataset.open();
  EXPECT_EQ(samples_of(loader.next()).size(), 1u);
}

TEST(BatchLoader, EndsWhilePrefetching) {
  for (int i = 0; i < 20; ++i) {
    const ClosedDataset dataset;
    BatchLoader loader(dataset, {}, {.batch = 2, .threads = 3});
    dataset.wait_for_readers(3);
    dataset.open();
  }
  const NumberedDataset dataset(100);
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(dataset, {}, {.batch = 7, .threads = 4, .slots = 3});
    take(loader, i % 5);
    if (i % 2 == 1) loader.seek(1, 2);
  }
}

// The loader's threads may use the augmentation until the loader ends, even if all other owners have released
// it.
TEST(BatchLoader, KeepsTheAugmentationOfItsImages) {
  const NumberedDataset dataset(64);
  const Augmentation augmentation{.crop_padding = 1, .key = augmentation_key(3)};
  const ImageShape shape = dataset.image_shape();
  LoaderOptions options{.batch = 8, .threads = 2};
  options.augmentation =
      std::make_shared<HostAugmentation>(augmentation, shape.height, shape.width, shape.channels);
  const HostAugmentation same(augmentation, shape.height, shape.width, shape.channels);
  BatchLoader loader(dataset, {}, options);
  options = {};
  for (int batch = 0; batch < 20; ++batch) {
    const Batch& next = loader.next();
    const std::span<const std::uint8_t> images = next.images.as<std::uint8_t>();
    std::vector<std::uint8_t> expected(4);
    for (std::size_t i = 0; i < 8; ++i) {
      dataset.read(next.samples[i].index, expected);
      same(next.samples[i], expected);
      EXPECT_TRUE(std::ranges::equal(expected, images.subspan(4 * i, 4)));
    }
  }
}

}  // namespace
}  // namespace lockstep
