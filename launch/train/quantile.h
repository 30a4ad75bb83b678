// SPDX-License-Identifier: Apache-2.0
//
// Quantiles of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep {

// values: ascending, at least one. fraction in [0, 1]; interpolates linearly between neighbours.
inline double quantile(const std::vector<double>& ascending, double fraction) {
  const double place = fraction * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return ascending[below] + (place - static_cast<double>(below)) * (ascending[above] - ascending[below]);
}

// The median; 0 if there are no values.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

// Quantile of value(item) over the items; at least one item.
template <typename Items, typename Value>
double quantile_over(const Items& items, double fraction, Value value) {
  std::vector<double> values;
  for (const auto& item : items) values.push_back(value(item));
  std::sort(values.begin(), values.end());
  return quantile(values, fraction);
}

}  // namespace lockstep
