// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/predictor.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// fp32 cannot count more than 2^24 pixels.
TEST(ClassShares, AreExactForLargeMasks) {
  std::vector<std::uint8_t> mask((1 << 24) + (1 << 20), 0);
  EXPECT_EQ(class_shares(mask, 3), (std::vector<float>{1, 0, 0}));
  std::fill(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(mask.size() / 4), std::uint8_t{2});
  EXPECT_EQ(class_shares(mask, 3), (std::vector<float>{0.75f, 0, 0.25f}));
}

}  // namespace
}  // namespace lockstep
