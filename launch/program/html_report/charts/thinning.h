// SPDX-License-Identifier: Apache-2.0
//
// Reduces curves to as many points as a chart can show.
#pragma once

#include <span>
#include <vector>

#include "core/timeline.h"
#include "launch/observe/charts/chart_axis.h"

namespace lockstep {

// The points in one column of a chart.
struct ColumnPoint {
  double x = 0;  // x and y are means of the points
  double low = 0, y = 0, high = 0;
  std::size_t points = 1;
};

// Drops points that are not finite, or 1e100 and more. Keeps up to `columns` points unchanged; otherwise
// merges the points of each column. Ascending by x.
std::vector<ColumnPoint> thinned(std::vector<ChartPoint> points, std::size_t columns);

// Seconds by phase for the steps up to `step`, after the step of the previous point.
struct AccountPoint {
  double step = 0;
  StepAccount account = {};
};

// Like the above, but the accounts of a column are summed, so the total is unchanged.
std::vector<AccountPoint> thinned(std::span<const AccountPoint> points, std::size_t columns);

}  // namespace lockstep
