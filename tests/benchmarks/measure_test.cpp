// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/measure.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Measure, TheMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({7}), 7);
  EXPECT_DOUBLE_EQ(median({9, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({9, 1, 4, 2}), 3);
}

TEST(Measure, ASpreadHasTheMedianAndBothEnds) {
  const Spread spread = spread_of({9, 1, 4, 2});
  EXPECT_DOUBLE_EQ(spread.typical, 3);
  EXPECT_DOUBLE_EQ(spread.least, 1);
  EXPECT_DOUBLE_EQ(spread.most, 9);
}

}  // namespace
}  // namespace lockstep
