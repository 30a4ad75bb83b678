// SPDX-License-Identifier: Apache-2.0
#include "data/sets/preloaded.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/tensor/buffer.h"
#include "data/batch_loader.h"
#include "data/formats/synthetic.h"
#include "data/images/resized.h"
#include "data/sets/verify.h"

namespace lockstep {
namespace {

// Computed images that count how often each was read.
class Counted final : public Dataset {
 public:
  explicit Counted(std::int64_t samples)
      : images_(open_synthetic(
            {.height = 5, .width = 3, .channels = 3, .classes = 1, .train_samples = samples}, Split::train)),
        reads_(static_cast<std::size_t>(samples)) {}

  std::int64_t size() const override { return images_->size(); }
  ImageShape image_shape() const override { return images_->image_shape(); }
  std::int64_t classes() const override { return images_->classes(); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    ++reads_[static_cast<std::size_t>(index)];
    if (index == broken) throw DataError("sample is broken");
    return images_->read(index, image);
  }
  int reads(std::int64_t index) const { return reads_[static_cast<std::size_t>(index)]; }

  std::int64_t broken = -1;

 private:
  std::unique_ptr<Dataset> images_;
  mutable std::vector<std::atomic<int>> reads_;
};

// One buffer for each of the processes that share the images, here in one process.
std::shared_ptr<std::vector<Buffer>> places_for(const Dataset& dataset, int places) {
  auto memory = std::make_shared<std::vector<Buffer>>();
  for (int i = 0; i < places; ++i)
    memory->emplace_back(PreloadMemory::bytes_of_place(dataset, places), Device{});
  return memory;
}
std::unique_ptr<Dataset> preloaded_in(const std::shared_ptr<const Dataset>& dataset,
                                      const std::shared_ptr<std::vector<Buffer>>& memory) {
  PreloadMemory places{.owner = memory};
  for (const Buffer& place : *memory) places.places.push_back(place.data());
  return preloaded(dataset, std::move(places));
}

std::vector<std::uint8_t> image_of(const Dataset& dataset, std::int64_t index, std::int32_t& label) {
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  label = dataset.read(index, image);
  return image;
}

// Two sharers, one after the other, each with several threads.
TEST(Preloaded, DecodesEachImageOnceBeforeTraining) {
  const auto counted = std::make_shared<Counted>(51);
  counted->broken = 7;
  const auto memory = places_for(*counted, 2);
  std::int64_t told = 0, undecodable = 0;
  for (const int rank : {0, 1}) {
    const std::unique_ptr<Dataset> kept = preloaded_in(counted, memory);
    const std::int64_t own = rank == 0 ? 26 : 25;
    undecodable += decode_now(*kept, {.shard = {.rank = rank, .size = 2},
                                      .threads = 3,
                                      .told_progress = [&](std::int64_t done, std::int64_t all) {
                                        EXPECT_EQ(all, own);
                                        EXPECT_LE(done, all);
                                        told = done;
                                      }});
    EXPECT_EQ(told, own) << "also if other threads read all samples";
  }
  EXPECT_EQ(undecodable, 1);
  for (std::int64_t i = 0; i < counted->size(); ++i) EXPECT_EQ(counted->reads(i), 1) << i;
  const std::unique_ptr<Dataset> kept = preloaded_in(counted, memory);
  const Counted expected(counted->size());
  for (std::int64_t i = 0; i < counted->size(); ++i) {
    if (i == counted->broken) continue;
    std::int32_t label = -1, right = -1;
    EXPECT_EQ(image_of(*kept, i, label), image_of(expected, i, right)) << i;
    EXPECT_EQ(label, right);
    EXPECT_EQ(counted->reads(i), 1) << i;
  }
}

// data.verify = "all" decodes every image before training.
TEST(Preloaded, VerifiedImagesAreKept) {
  const auto counted = std::make_shared<Counted>(9);
  const std::unique_ptr<Dataset> kept = preloaded_in(counted, places_for(*counted, 2));
  verify(*kept, {.extent = Verify::all, .threads = 2});
  std::int32_t label = -1;
  for (std::int64_t i = 0; i < counted->size(); ++i) {
    image_of(*kept, i, label);
    EXPECT_EQ(counted->reads(i), 1) << i;
  }
}

TEST(Preloaded, DecodingStopsAtABrokenImageIfAsked) {
  const auto counted = std::make_shared<Counted>(51);
  counted->broken = 7;
  const std::unique_ptr<Dataset> kept = preloaded_in(counted, places_for(*counted, 1));
  EXPECT_THROW(decode_now(*kept, {.threads = 2, .on_error = OnError::stop}), DataError);
}

TEST(Preloaded, EqualsTheDataset) {
  for (const int places : {1, 2, 3, 7}) {
    for (const std::int64_t samples : {1, 2, 50}) {
      const auto counted = std::make_shared<Counted>(samples);
      const std::unique_ptr<Dataset> kept = preloaded_in(counted, places_for(*counted, places));
      EXPECT_EQ(kept->size(), samples);
      EXPECT_EQ(kept->image_shape(), counted->image_shape());
      EXPECT_EQ(kept->classes(), counted->classes());
      for (int round = 0; round < 3; ++round) {
        for (std::int64_t i = 0; i < samples; ++i) {
          std::int32_t label = -1, own = -1;
          EXPECT_EQ(image_of(*kept, i, label), image_of(*counted, i, own));
          EXPECT_EQ(label, own);
          EXPECT_EQ(counted->reads(i), round + 2);  // once for all rounds, and the reads just now
        }
      }
    }
  }
}

// Like processes: each has a separate dataset, and all share the memory.
TEST(Preloaded, IsDecodedOnceByAllSharers) {
  constexpr std::int64_t kSamples = 400;
  constexpr int kSharers = 3;
  std::vector<std::shared_ptr<Counted>> own;
  for (int i = 0; i < kSharers; ++i) own.push_back(std::make_shared<Counted>(kSamples));
  const auto memory = places_for(*own[0], kSharers);
  std::barrier first_round(kSharers);  // after it no image is still being stored
  std::vector<std::jthread> threads;
  std::atomic<int> wrong{0};
  for (int sharer = 0; sharer < kSharers; ++sharer) {
    threads.emplace_back([&, sharer] {
      const std::unique_ptr<Dataset> kept = preloaded_in(own[static_cast<std::size_t>(sharer)], memory);
      const Counted expected(kSamples);
      for (int round = 0; round < 2; ++round) {
        for (std::int64_t i = 0; i < kSamples; ++i) {
          std::int32_t label = -1, right = -1;
          if (image_of(*kept, i, label) != image_of(expected, i, right) || label != right) ++wrong;
        }
        if (round == 0) first_round.arrive_and_wait();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  const std::unique_ptr<Dataset> late = preloaded_in(own[0], memory);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const int before = own[0]->reads(i);
    std::int32_t label = -1;
    image_of(*late, i, label);
    EXPECT_EQ(own[0]->reads(i), before) << "sample " << i << " was decoded again";
    EXPECT_LE(own[0]->reads(i) + own[1]->reads(i) + own[2]->reads(i), kSharers)
        << "each sharer may decode a sample at most once";
  }
}

TEST(Preloaded, AnUndecodableSampleIsRetried) {
  const auto counted = std::make_shared<Counted>(10);
  counted->broken = 4;
  const std::unique_ptr<Dataset> kept = preloaded_in(counted, places_for(*counted, 2));
  std::int32_t label = -1;
  EXPECT_THROW(image_of(*kept, 4, label), DataError);
  EXPECT_THROW(image_of(*kept, 4, label), DataError);
  counted->broken = -1;
  EXPECT_NO_THROW(image_of(*kept, 4, label));
  image_of(*kept, 4, label);
  EXPECT_EQ(counted->reads(4), 3);
}

// Images of one value with masks of one class; counts how often masks were read.
class WithMasks final : public Dataset {
 public:
  std::int64_t size() const override { return 5; }
  ImageShape image_shape() const override { return {.height = 2, .width = 3, .channels = 3}; }
  std::int64_t classes() const override { return 200; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::ranges::fill(image, static_cast<std::uint8_t>(index));
    return 0;
  }
  bool has_masks() const override { return true; }
  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    ++reads;
    std::ranges::fill(mask, static_cast<std::uint8_t>(100 + index));
  }
  mutable std::atomic<int> reads{0};
};

TEST(Preloaded, MasksAreDecodedOnce) {
  for (const int places : {1, 2}) {
    const auto dataset = std::make_shared<WithMasks>();
    const std::unique_ptr<Dataset> kept = preloaded_in(dataset, places_for(*dataset, places));
    EXPECT_EQ(decode_now(*kept, {.threads = 2}), 0);
    EXPECT_EQ(dataset->reads, 5);
    for (std::int64_t i = 0; i < 5; ++i) {
      std::int32_t label = -1;
      EXPECT_EQ(image_of(*kept, i, label), std::vector<std::uint8_t>(18, static_cast<std::uint8_t>(i)));
      EXPECT_EQ(label, 0);
      std::vector<std::uint8_t> mask(6);
      kept->read_mask(i, mask);
      EXPECT_EQ(mask, std::vector<std::uint8_t>(6, static_cast<std::uint8_t>(100 + i)));
    }
    EXPECT_EQ(dataset->reads, 5);
  }
}

TEST(Preloaded, RandomCropsAreDrawnInEveryEpoch) {
  const std::shared_ptr<const Dataset> drawn =
      resized(std::make_unique<Counted>(6), {.size = 4, .random_crop = true});
  EXPECT_TRUE(drawn->draws() && drawn->decodes());
  const std::unique_ptr<Dataset> kept = preloaded_in(drawn, places_for(*drawn, 1));
  std::vector<std::uint8_t> image(4 * 4 * 3), own(image.size()), middle(image.size());
  kept->read(2, middle);  // preloaded now
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    kept->read_augmented(2, {.seed = 1, .epoch = epoch}, image);
    drawn->read_augmented(2, {.seed = 1, .epoch = epoch}, own);
    EXPECT_EQ(image, own);
    EXPECT_NE(image, middle);
  }
}

}  // namespace
}  // namespace lockstep
