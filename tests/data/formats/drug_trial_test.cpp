// SPDX-License-Identifier: Apache-2.0
#include "data/formats/drug_trial.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(DrugTrial, HasTheNumbersOfItsDescription) {
  std::array<std::array<int, 2>, 2> people = {};              // by older and by label
  using People = std::vector<std::pair<long, std::int32_t>>;  // ages and labels
  People first;
  float least = 1, largest = 0;
  for (const Split split : {Split::train, Split::test}) {
    const std::unique_ptr<Dataset> table = open_dataset({.format = "drug_trial", .path = "none"}, split);
    EXPECT_EQ(table->size(), split == Split::train ? 1890 : 210);
    EXPECT_EQ(table->image_shape(), (ImageShape{1, 1, 1, DType::f32}));
    EXPECT_EQ(table->class_names(), (std::vector<std::string>{"no side effects", "side effects"}));
    int side_effects = 0;
    for (std::int64_t i = 0; i < table->size(); ++i) {
      std::array<std::uint8_t, sizeof(float)> bytes;
      const std::int32_t label = table->read(i, bytes);
      const auto scaled = std::bit_cast<float>(bytes);
      const float age = 13 + 87 * scaled;
      EXPECT_NEAR(age, std::round(age), 1e-4) << i;
      if (first.size() < 6) first.emplace_back(std::lround(age), label);
      least = std::min(least, scaled);
      largest = std::max(largest, scaled);
      ++people[age > 64.5f ? 1 : 0][static_cast<std::size_t>(label)];
      side_effects += label;
    }
    const double share = static_cast<double>(side_effects) / static_cast<double>(table->size());
    EXPECT_NEAR(share, 0.5, split == Split::train ? 0.02 : 0.1) << "people are in random order";
  }
  EXPECT_EQ(people, (std::array<std::array<int, 2>, 2>{{{1000, 50}, {50, 1000}}}));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(largest, 1);
  EXPECT_EQ(first, (People{{41, 0}, {50, 0}, {72, 1}, {71, 1}, {90, 1}, {84, 1}})) << "on every machine";
}

}  // namespace
}  // namespace lockstep
