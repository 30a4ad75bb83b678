// SPDX-License-Identifier: Apache-2.0
//
// Least squares of a few terms whose coefficients cannot be negative: latencies and seconds for each byte,
// out of times that were measured.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace lockstep {

inline constexpr std::size_t kMostFitTerms = 3;
using FitTerms = std::array<double, kMostFitTerms>;

// Terms, each times its coefficient, which should add up to `value`. For errors relative to a measurement
// both are divided by it.
struct FitEquation {
  FitTerms terms = {};
  double value = 0;
};

// Which terms have a coefficient, bit by bit; those of the others are 0.
using FitTermSet = unsigned;

// Of all sets that the equations can tell apart and that need no coefficient below 0, the coefficients that
// fit best; where two fit alike, those of the set that stands first. Nothing where there is no such set.
std::optional<FitTerms> fit_terms(std::span<const FitEquation> equations, std::span<const FitTermSet> sets);

}  // namespace lockstep
