// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/charts/chart_axis.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// Returns 1, 2 or 5 times a power of ten, so that about `wanted` steps make up the span.
double tick_step(double span, int wanted) {
  const double rough = span / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int wanted) {
  const double size = std::max({std::abs(low), std::abs(high), 1e-100});
  // For values that hardly differ, rounding would hide the step.
  const bool apart = high - low > 1e-9 * size;
  const double step = tick_step(apart ? high - low : std::max(std::abs(high), 1.0), wanted);
  const double first = std::floor(low / step), last = std::max(std::ceil(high / step), first + 1);
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i * step + 0.0);
  return ticks;
}

}  // namespace lockstep
