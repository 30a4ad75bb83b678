// SPDX-License-Identifier: Apache-2.0
//
// Curves of any number of points, as few of them as a chart has room for.
#pragma once

#include <span>
#include <vector>

#include "core/timeline.h"
#include "launch/charts/chart_axis.h"

namespace lockstep {

// What lies in one column of a chart.
struct ColumnPoint {
  double x = 0;  // the mean of its points, as y is
  double low = 0, y = 0, high = 0;
  std::size_t points = 1;
};

// Points that are not finite, or 1e100 and more, are left out. At most `columns` points are all kept; of
// more, those of a column become one. Ascending by x.
std::vector<ColumnPoint> thinned(std::vector<ChartPoint> points, std::size_t columns);

// Seconds by phase, of the steps up to `step` behind those of the one before.
struct AccountPoint {
  double step = 0;
  StepAccount account = {};
};

// The same for accounts, which are added up; what they add up to stays.
std::vector<AccountPoint> thinned(std::span<const AccountPoint> points, std::size_t columns);

}  // namespace lockstep
