// SPDX-License-Identifier: Apache-2.0
//
// Shared by all charts: points, and ticks at round values.
#pragma once

#include <vector>

namespace lockstep {

struct ChartPoint {
  double x = 0;
  double y = 0;
};

// Multiples of a round step that enclose [low, high], about `wanted` of them. Both bounds are finite, with an
// absolute value below 1e100.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace lockstep
