// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/least_squares.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr FitTermSet kConstant = 1, kLinear = 2;
constexpr FitTermSet kLines[] = {kConstant | kLinear, kLinear, kConstant};

std::vector<FitEquation> line(double constant, double slope, const std::vector<double>& at) {
  std::vector<FitEquation> equations;
  for (const double x : at) equations.push_back({.terms = {1, x}, .value = constant + slope * x});
  return equations;
}

TEST(LeastSquares, FindsCoefficientsOfDifferentMagnitudes) {
  const auto fit = fit_terms(line(3e-4, 5e-11, {1e5, 1e6, 2.5e7}), kLines);
  ASSERT_TRUE(fit);
  EXPECT_NEAR((*fit)[0], 3e-4, 1e-12);
  EXPECT_NEAR((*fit)[1], 5e-11, 1e-19);
  EXPECT_EQ((*fit)[2], 0);
}

TEST(LeastSquares, DropsATermThatWouldBeNegative) {
  const auto steep = fit_terms(line(-1, 2, {1, 2, 3}), kLines);
  EXPECT_EQ((*steep)[0], 0);
  EXPECT_NEAR((*steep)[1], (1 * 1 + 2 * 3 + 3 * 5) / 14.0, 1e-12);
  const auto falling = fit_terms(line(10, -1, {1, 2, 3}), kLines);
  EXPECT_NEAR((*falling)[0], 8, 1e-12);
  EXPECT_EQ((*falling)[1], 0);
}

TEST(LeastSquares, PrefersTheFirstOfEqualFits) {
  const auto fit = fit_terms(line(0, 7, {3, 3, 3}), kLines);
  EXPECT_EQ((*fit)[0], 0) << "points of one size determine no constant";
  EXPECT_NEAR((*fit)[1], 7, 1e-12);
}

TEST(LeastSquares, IsEmptyIfNoSetIsDetermined) {
  EXPECT_FALSE(fit_terms(line(0, 1, {0, 0}), std::vector<FitTermSet>{kLinear}));
  EXPECT_FALSE(fit_terms(line(0, -1, {1, 2}), std::vector<FitTermSet>{kLinear}));
}

}  // namespace
}  // namespace lockstep
