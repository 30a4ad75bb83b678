// SPDX-License-Identifier: Apache-2.0
//
// Least squares of a few terms with coefficients that are not negative: latencies and seconds per byte,
// fitted to measured times.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace lockstep {

inline constexpr std::size_t kMostFitTerms = 3;
using FitTerms = std::array<double, kMostFitTerms>;

// The sum of terms times coefficients should equal `value`. Divide both by the measurement to fit relative
// errors.
struct FitEquation {
  FitTerms terms = {};
  double value = 0;
};

// Bit i: term i has a coefficient; without it the coefficient is 0.
using FitTermSet = unsigned;

// The best fit among the sets whose terms the equations determine and that need no coefficient below 0; of
// equally good sets, the first. Returns nothing if there is no such set.
std::optional<FitTerms> fit_terms(std::span<const FitEquation> equations, std::span<const FitTermSet> sets);

}  // namespace lockstep
