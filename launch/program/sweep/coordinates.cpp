// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/coordinates.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "core/text/text.h"
#include "launch/observe/charts/chart_axis.h"
#include "launch/observe/charts/markup.h"

namespace lockstep {
namespace {

constexpr double kSideMargin = 90, kTopMargin = 96, kFootMargin = 34, kAxisHeight = 300, kAxisDistance = 170;
constexpr double kLeastLabelDistance = 15;  // pixels, so that labels do not touch
constexpr int kWantedLabels = 5;
constexpr std::size_t kShades = 8;

// Shades of one hue from faint to strong, for a light and for a dark page.
constexpr const char* kSweepStyle = R"(<style>
svg { background: #ffffff; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
text { fill: #1b2129; } .soft { fill: #5b6675; } .axis { stroke: #5b6675; } .m { text-anchor: middle; } .e { text-anchor: end; }
.page { fill: #ffffff; } path { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .front { stroke-width: 3; } path:hover { stroke-width: 5; }
.q0 { stroke: #c6d3e3; } .q1 { stroke: #a8bedb; } .q2 { stroke: #86a9d2; } .q3 { stroke: #6192c6; }
.q4 { stroke: #3f7bb6; } .q5 { stroke: #2263a3; } .q6 { stroke: #0f4a87; } .q7 { stroke: #062f60; }
@media (prefers-color-scheme: dark) {
svg { background: #12161b; } text { fill: #e7ebf0; } .soft { fill: #9ba7b5; } .axis { stroke: #9ba7b5; } .page { fill: #12161b; }
.q0 { stroke: #2b3a4d; } .q1 { stroke: #34506f; } .q2 { stroke: #3d6792; } .q3 { stroke: #477fb5; }
.q4 { stroke: #5a98d3; } .q5 { stroke: #7bb2e8; } .q6 { stroke: #a5cdf7; } .q7 { stroke: #d6ebff; } }
</style>
)";

// A vertical axis. place() gives the position of a trial, from 0 at the bottom to 1.
struct UprightAxis {
  std::string title;
  std::vector<std::pair<double, std::string>> labels = {};
  std::function<double(const SweepRow& row)> place;
};

double share_between(double value, double low, double high) {
  return high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0.5;
}

UprightAxis listed_axis(const SweepAxis& axis) {
  UprightAxis upright{.title = axis.key, .place = {}};
  const double last = std::max<double>(1, static_cast<double>(axis.values.size()) - 1);
  const bool single = axis.values.size() == 1;
  for (std::size_t i = 0; i < axis.values.size(); ++i)
    upright.labels.emplace_back(single ? 0.5 : static_cast<double>(i) / last, axis.values[i]);
  upright.place = [&axis, last, single](const SweepRow& row) {
    const auto found = std::ranges::find(axis.values, row.settings.at(axis.key));
    return single ? 0.5 : static_cast<double>(found - axis.values.begin()) / last;
  };
  return upright;
}

UprightAxis range_axis(const SweepAxis& axis) {
  const SweepRange& range = axis.range;
  const auto scaled = [logarithmic = range.logarithmic](double value) {
    return logarithmic ? std::log10(value) : value;
  };
  const double low = scaled(range.min), high = scaled(range.max);
  UprightAxis upright{.title = axis.key, .place = {}};
  for (const double end : {range.min, range.max})
    upright.labels.emplace_back(share_between(scaled(end), low, high), fmt::format("{:.4g}", end));
  for (const double tick : round_ticks(low, high, kWantedLabels)) {
    const bool decade = !range.logarithmic || tick == std::round(tick);
    if (tick <= low || tick >= high || !decade) continue;
    upright.labels.emplace_back(share_between(tick, low, high),
                                fmt::format("{:.4g}", range.logarithmic ? std::pow(10, tick) : tick));
  }
  upright.place = [&axis, scaled, low, high](const SweepRow& row) {
    return share_between(scaled(std::atof(row.settings.at(axis.key).c_str())), low, high);
  };
  return upright;
}

using RowFigure = double (*)(const SweepRow& row);

UprightAxis figure_axis(const char* title, RowFigure figure, const std::vector<const SweepRow*>& rows) {
  double least = figure(*rows.front()), most = least;
  for (const SweepRow* row : rows) {
    least = std::min(least, figure(*row));
    most = std::max(most, figure(*row));
  }
  const std::vector<double> ticks = round_ticks(least, most, kWantedLabels);
  const double low = ticks.front(), high = ticks.back();
  UprightAxis upright{.title = title, .place = {}};
  for (const double tick : ticks)
    upright.labels.emplace_back(share_between(tick, low, high), fmt::format("{:.6g}", tick));
  upright.place = [figure, low, high](const SweepRow& row) { return share_between(figure(row), low, high); };
  return upright;
}

double percent_of(const SweepRow& row) { return 100 * row.measure.accuracy; }
double speed_of(const SweepRow& row) { return row.measure.samples_per_second; }

class CoordinatesPicture {
 public:
  CoordinatesPicture(const SweepOutcome& outcome, const SweepSpace& space);
  std::string text() &&;

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }
  double x_of(std::size_t axis) const { return kSideMargin + kAxisDistance * static_cast<double>(axis); }
  static double y_of(double place) { return kTopMargin + kAxisHeight * (1 - place); }
  void draw_axis(std::size_t index);
  void draw_trial(const SweepRow& row);
  void draw_legend();

  const SweepOutcome& outcome_;
  std::vector<const SweepRow*> rows_;  // the best last, to be drawn on top
  std::vector<UprightAxis> axes_;
  std::size_t objective_ = 0;  // the axis that gives the colour
  std::string svg_;
};

CoordinatesPicture::CoordinatesPicture(const SweepOutcome& outcome, const SweepSpace& space)
    : outcome_(outcome) {
  for (const SweepRow& row : outcome.rows)
    if (row.epochs > 0) rows_.push_back(&row);
  std::ranges::reverse(rows_);
  for (const SweepAxis& axis : space.axes())
    axes_.push_back(axis.listed() ? listed_axis(axis) : range_axis(axis));
  if (rows_.empty()) return;
  axes_.push_back(figure_axis("samples/s", speed_of, rows_));
  axes_.push_back(figure_axis("accuracy, %", percent_of, rows_));
  objective_ = axes_.size() - (outcome.objective == SweepObjective::samples_per_second ? 2 : 1);
}

// Writes a key on two lines: neighbouring axes leave little room.
void CoordinatesPicture::draw_axis(std::size_t index) {
  const UprightAxis& axis = axes_[index];
  const double x = x_of(index);
  const std::size_t dot = axis.title.rfind('.');
  const std::size_t split = dot == std::string::npos ? 0 : dot + 1;
  if (split > 0)
    add("<text class=\"m soft\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, kTopMargin - 32,
        in_markup(axis.title.substr(0, split)));
  add("<text class=\"m\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, kTopMargin - 16,
      in_markup(axis.title.substr(split)));
  add("<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n", x, y_of(0),
      y_of(1));
  std::vector<double> taken;
  for (const auto& [place, label] : axis.labels) {
    const double y = y_of(place);
    if (std::ranges::any_of(taken, [&](double at) { return std::abs(at - y) < kLeastLabelDistance; }))
      continue;
    taken.push_back(y);
    add("<line class=\"axis\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x - 4, y, x, y);
    add("<text class=\"e soft\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x - 7, y + 4, in_markup(label));
  }
}

// Shades a trial by its rank, not its figure, since figures are often close together.
void CoordinatesPicture::draw_trial(const SweepRow& row) {
  std::string line;
  for (std::size_t index = 0; index < axes_.size(); ++index)
    add_point(line, x_of(index), y_of(axes_[index].place(row)));
  const auto below = static_cast<std::size_t>(std::ranges::count_if(rows_, [&](const SweepRow* other) {
    return axes_[objective_].place(*other) < axes_[objective_].place(row);
  }));
  const std::size_t shade = rows_.size() > 1 ? below * (kShades - 1) / (rows_.size() - 1) : kShades - 1;
  add("<path class=\"q{}{}\" d=\"{}\"><title>trial {}: {:.2f} % after {}, {:.6g} samples/s; "
      "{}</title></path>\n",
      shade, row.pareto ? " front" : "", line, row.trial, percent_of(row), counted(row.epochs, "epoch"),
      speed_of(row), in_markup(describe(row.settings)));
}

void CoordinatesPicture::draw_legend() {
  const char* what = outcome_.objective == SweepObjective::samples_per_second ? "samples/s" : "accuracy";
  add("<text x=\"{:.1f}\" y=\"26\">{} trials; colour by {}, from low</text>\n", kSideMargin - 60,
      rows_.size(), what);
  for (std::size_t shade = 0; shade < kShades; ++shade)
    add("<path class=\"q{} front\" d=\"M{:.1f} 22h14\"/>\n", shade,
        kSideMargin + 175 + 15 * static_cast<double>(shade));
  add("<text x=\"{:.1f}\" y=\"26\">to high; thick: on the Pareto front</text>\n", kSideMargin + 305);
}

std::string CoordinatesPicture::text() && {
  const double last = x_of(std::max<std::size_t>(axes_.size(), 1) - 1);
  const double width = std::max(last + kSideMargin, 620.0), height = kTopMargin + kAxisHeight + kFootMargin;
  svg_ += kSweepStyle;
  svg_ += "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
  draw_legend();
  for (const SweepRow* row : rows_) draw_trial(*row);
  for (std::size_t index = 0; index < axes_.size(); ++index) draw_axis(index);
  return svg_element(width, height, "", svg_);
}

}  // namespace

std::string parallel_coordinates(const SweepOutcome& outcome, const SweepSpace& space) {
  return CoordinatesPicture(outcome, space).text();
}

}  // namespace lockstep
