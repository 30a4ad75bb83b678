// SPDX-License-Identifier: Apache-2.0
//
// Charts of the page: figures whose SVG takes its colours from the page's style sheet. A browser shows the
// values under the pointer. A curve with more points than the chart has columns is thinned to column means,
// with a band from minimum to maximum; the caption says so.
#pragma once

#include <string>
#include <vector>

#include "launch/observe/charts/chart_axis.h"
#include "launch/program/html_report/charts/thinning.h"

namespace lockstep {

struct Curve {
  std::string name;
  std::vector<ChartPoint> points;
  std::size_t color = 0;  // index into the series colours of the style sheet
  bool dashed = false;
};

struct CurveChart {
  std::string title;
  std::string x_title = "step";
  std::string unit = {};  // of y
  bool from_zero = true;  // the y axis reaches down to 0
  double top = 0;         // minimum of the axis' upper end
  bool legend = true;     // if there are several curves
  std::vector<Curve> curves = {};
};

// A <figure>; empty if there is no point to draw.
std::string to_figure(const CurveChart& chart);

// The share of each phase over steps, as a <figure> without a legend.
std::string account_figure(const std::string& title, const std::vector<AccountPoint>& points);

// A whole account as one bar.
std::string account_bar(const StepAccount& account);

// Display name of a phase, and a legend of the phases with a time above 0.
std::string phase_text(Phase phase);
std::string account_legend(const StepAccount& account);
StepAccount total_of(const std::vector<AccountPoint>& points);

// The style sheet's class for the colour of a phase, or of a curve.
std::string phase_class(Phase phase);
std::string curve_class(std::size_t color);

}  // namespace lockstep
