// SPDX-License-Identifier: Apache-2.0
//
// The comparisons between ranks before and after training, on threads.
#include <algorithm>
#include <regex>

#include <gtest/gtest.h>

#include "launch/train/watch/replicas.h"
#include "models/networks/networks.h"
#include "tests/comm/agreed_message.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class CountingDataset final : public Dataset {
 public:
  CountingDataset(std::int64_t size, ImageShape shape, std::int64_t classes, std::int64_t first = 0)
      : size_(size), shape_(shape), classes_(classes), first_(first) {}
  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::fill(image.begin(), image.end(), static_cast<std::uint8_t>(first_ + index));
    return static_cast<std::int32_t>(index % classes_);
  }

 private:
  std::int64_t size_;
  ImageShape shape_;
  std::int64_t classes_;
  std::int64_t first_;  // pixel of the first image
};

const CountingDataset kUsual(100, {4, 4, 1}, 10);

// Rank 2 has the data `train` and `test`; its peers have the usual data.
std::string data_message(const CountingDataset& train, const CountingDataset& test = kUsual) {
  return agreed_message(3, exit_code::data, [&](Communicator& communicator) {
    const bool differs = communicator.rank() == 2;
    require_same_data(communicator, differs ? train : kUsual, differs ? test : kUsual, "/data");
  });
}

TEST(SameData, ComparesCountShapeAndClasses) {
  EXPECT_EQ(data_message({100, {4, 4, 1}, 10}), "");
  expect_parts(data_message({99, {4, 4, 1}, 10}),
               {"/data", "rank 2", "rank 0", "99 training", "100 training", "100 test"});
  expect_parts(data_message({100, {4, 2, 2}, 10}), {"rank 2", "4x2x2", "4x4x1"});
  expect_parts(data_message({100, {4, 4, 1}, 9}), {"rank 2", "9 classes", "10 classes"});
  expect_parts(data_message(kUsual, {99, {4, 4, 1}, 10}), {"rank 2", "99 test", "100 test"});
  for (const std::string& text :
       {data_message({100, {4, 4, 1}, 10, 1}), data_message(kUsual, {100, {4, 4, 1}, 10, 1})})
    expect_parts(text, {"rank 2", "100 training", "hashes"});
}

TEST(BroadcastState, CopiesParametersAndStatisticsFromRankZero) {
  Graph graph({.batch = 2, .height = 8, .width = 8, .channels = 1, .classes = 3});
  cnn(graph);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    run_thread_ranks(3, [&](Communicator& communicator) {
      // A different seed for each rank, as if each had read another file.
      Network network(graph,
                      {.precision = precision, .seed = static_cast<std::uint64_t>(communicator.rank())});
      std::ranges::fill(network.statistics(), static_cast<float>(communicator.rank()));
      const auto half_of_first = [&] {
        const FlatRange range = network.weight_copies();
        return range.end == 0 ? std::uint16_t{0} : *static_cast<const std::uint16_t*>(range.data);
      };
      std::vector<float> expected(network.values().begin(), network.values().end());
      std::uint16_t expected_copy = half_of_first();
      communicator.broadcast(expected.data(), expected.size(), DType::f32, 0);
      communicator.broadcast(&expected_copy, sizeof(expected_copy), DType::u8, 0);
      communicator.stream().synchronize();

      broadcast_state(communicator, network);
      EXPECT_TRUE(std::ranges::equal(network.values(), expected));
      for (const auto statistics : {network.statistics(), network.evaluation_statistics()})
        EXPECT_TRUE(std::ranges::all_of(statistics, [](float value) { return value == 0; }));
      EXPECT_EQ(half_of_first(), expected_copy) << "the copies that layers compute with";
    });
  }
}

TEST(SameState, NamesRankZeroIfItDiffersFromMost) {
  const std::string message = agreed_message(3, exit_code::failed, [](Communicator& communicator) {
    require_same_state(communicator, communicator.rank() == 0 ? "0124" : "0123");
  });
  expect_in_order(message, {"rank 0 has", "2 ranks", "device of rank 0"});
}

TEST(SameState, NamesTheDifferingRanks) {
  const std::string message = agreed_message(4, exit_code::failed, [](Communicator& communicator) {
    require_same_state(communicator, communicator.rank() % 2 == 0 ? "0123" : "0124");
  });
  EXPECT_TRUE(std::regex_search(message, std::regex(R"(\branks? 1, 3\b)"))) << message;
  expect_parts(message, {"rank 0"});
  EXPECT_EQ(
      agreed_message(4, 0, [](Communicator& communicator) { require_same_state(communicator, "0123"); }), "");
}

}  // namespace
}  // namespace lockstep
