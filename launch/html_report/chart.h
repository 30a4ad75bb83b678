// SPDX-License-Identifier: Apache-2.0
//
// Charts of the page: figures whose SVG takes its colours from the page's style sheet. A browser shows the
// numbers below the pointer. What has more points than the chart has columns is thinned to their means, with
// a band from the lowest to the highest; its caption says so.
#pragma once

#include <string>
#include <vector>

#include "launch/charts/chart_axis.h"
#include "launch/html_report/thinning.h"

namespace lockstep {

struct Curve {
  std::string name;
  std::vector<ChartPoint> points;
  std::size_t color = 0;  // of the style sheet's series
  bool dashed = false;
};

struct CurveChart {
  std::string title;
  std::string x_title = "step";
  std::string unit = {};  // of y
  bool from_zero = true;  // the y axis reaches down to 0
  double top = 0;         // and up to this at least
  bool legend = true;     // where there are several curves
  std::vector<Curve> curves = {};
};

// A <figure>; nothing where there is no point to draw.
std::string to_figure(const CurveChart& chart);

// How each stretch of steps divides among the phases. The legend has those of this account; none if it is
// empty.
std::string account_figure(const std::string& title, const std::vector<AccountPoint>& points,
                           const StepAccount& legend);

// A whole account as one bar.
std::string account_bar(const StepAccount& account);

// What phases are called, and a legend of those that took any time.
std::string phase_text(Phase phase);
std::string account_legend(const StepAccount& account);
StepAccount total_of(const std::vector<AccountPoint>& points);

// The class of the style sheet that has a phase's, or a curve's, colour.
std::string phase_class(Phase phase);
std::string curve_class(std::size_t color);

}  // namespace lockstep
