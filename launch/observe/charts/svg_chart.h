// SPDX-License-Identifier: Apache-2.0
//
// A line chart as SVG text: several series over one axis, with titles, ticks, units and a legend. The same
// chart gives the same text on any machine. A browser shows a point's numbers under the pointer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/observe/charts/chart_axis.h"

namespace lockstep {

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // drawn from left to right, without points that are not finite
};

struct LineChart {
  std::string title;
  std::string x_title = {};  // with its unit: "bucket size, MiB"
  std::string y_title = {};
  bool log_x = false;  // ticks are then at the points, as many as fit
  std::vector<ChartSeries> series = {};
  double width = 720;  // size of the whole picture, in pixels
  double height = 420;
};

// The y axis begins at 0, or below the lowest point where that is negative. Names and titles may hold any
// UTF-8 text. Throws an Error for a point of a logarithmic axis that is not above 0.
std::string to_svg(const LineChart& chart);
// Draws several charts in one picture, one below the other.
std::string to_svg(std::span<const LineChart> charts);

}  // namespace lockstep
