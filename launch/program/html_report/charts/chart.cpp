// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/charts/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "launch/observe/charts/markup.h"
#include "launch/program/html_report/html.h"
#include "launch/program/html_report/style.h"

namespace lockstep {
namespace {

// In units of the view box: about pixels if the page is wide enough.
constexpr double kPlotWidth = 420, kPlotHeight = 224;
constexpr double kPlotLeft = 48, kPlotRight = 20, kPlotTop = 27, kPlotBottom = 33;
constexpr std::size_t kColumns = 240;  // of thinned curves, and of pointer areas
constexpr std::size_t kMostDots = 40;  // points up to which a curve has dots
constexpr int kXTicks = 5, kYTicks = 4;

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e12) return fmt::format("{:.3g}", value);
  for (const auto& [unit, name] : {std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e4, "k"}})
    if (size >= unit) return fmt::format("{:.6g}{}", value / std::min(unit, unit == 1e4 ? 1e3 : unit), name);
  return fmt::format("{:.5g}", value);
}

// Axes of a chart, and the mapping from values to coordinates.
class Frame {
 public:
  Frame(double x_low, double x_high, double y_low, double y_high)
      : x_low_(x_low), x_high_(x_high > x_low ? x_high : x_low + std::max(1.0, std::abs(x_low) * 1e-6)) {
    y_ticks_ = round_ticks(y_low, y_high, kYTicks);
  }

  double x(double value) const {
    return kPlotLeft + (value - x_low_) / (x_high_ - x_low_) * (kPlotWidth - kPlotLeft - kPlotRight);
  }
  double y(double value) const {
    const double share = (value - y_ticks_.front()) / (y_ticks_.back() - y_ticks_.front());
    return kPlotHeight - kPlotBottom - share * (kPlotHeight - kPlotTop - kPlotBottom);
  }

  std::string axes(const std::string& x_title, const std::string& y_title) const {
    std::string svg = "<g class=\"grid\">";
    for (const double tick : y_ticks_)
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\"/>", kPlotLeft, y(tick), kPlotWidth - kPlotRight);
    svg += "</g>\n<g class=\"ticks\">";
    for (const double tick : y_ticks_)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"e\">{}</text>", kPlotLeft - 6, y(tick) + 4,
                         tick_text(tick));
    for (const double tick : round_ticks(x_low_, x_high_, kXTicks)) {
      if (tick < x_low_ || tick > x_high_) continue;
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"m\">{}</text>", x(tick),
                         kPlotHeight - kPlotBottom + 14, tick_text(tick));
    }
    return svg + fmt::format(
                     "<text x=\"{:.1f}\" y=\"11\">{}</text><text x=\"{:.1f}\" y=\"{:.1f}\" "
                     "class=\"e\">{}</text></g>\n",
                     2.0, in_markup(y_title), kPlotWidth - kPlotRight, kPlotHeight - 3, in_markup(x_title));
  }

  // A pointer area between these x values, with its tooltip.
  std::string place(double begin, double end, const std::string& text) const {
    return fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}</title></rect>\n", x(begin),
        kPlotTop, std::max(x(end) - x(begin), 0.5), kPlotHeight - kPlotTop - kPlotBottom, text);
  }

 private:
  double x_low_, x_high_;
  std::vector<double> y_ticks_;
};

std::string svg_of(const std::string& title, const std::string& inside) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg>\n",
      kPlotWidth, kPlotHeight, in_markup(title), inside);
}

std::string legend_entry(const std::string& color_class, const std::string& name, bool dashed) {
  return fmt::format("<span><i class=\"{}{}\"></i>{}</span> ", color_class, dashed ? " dashed" : "",
                     in_markup(name));
}

std::string figure_of(const std::string& title, const std::string& legend, const std::string& svg,
                      std::size_t thinned_from) {
  const std::string note = thinned_from == 0
                               ? ""
                               : fmt::format(" <span class=\"note\">thinned: {} points to {}</span>",
                                             number_text(static_cast<double>(thinned_from)), kColumns);
  return fmt::format("<figure>\n<figcaption>{}{}</figcaption>\n{}{}</figure>\n", in_markup(title), note,
                     legend.empty() ? "" : fmt::format("<p class=\"legend\">{}</p>\n", legend), svg);
}

struct DrawnCurve {
  const Curve* curve;
  std::vector<ColumnPoint> points;
  bool thin = false;
};

std::string drawing_of(const DrawnCurve& drawn, const Frame& frame) {
  const std::string color = curve_class(drawn.curve->color);
  std::string line, above, below;
  for (const ColumnPoint& point : drawn.points) {
    const double x = frame.x(point.x);
    add_point(line, x, frame.y(point.y));
    add_point(above, x, frame.y(point.high));
    below.insert(0, fmt::format("L{:.1f} {:.1f}", x, frame.y(point.low)));
  }
  std::string svg;
  if (drawn.thin) svg += fmt::format("<path class=\"band {}\" d=\"{}{}Z\"/>\n", color, above, below);
  if (drawn.points.size() > 1)
    svg += fmt::format("<path class=\"line {}{}\" d=\"{}\"/>\n", color, drawn.curve->dashed ? " dashed" : "",
                       line);
  return svg;
}

std::string dots_of(const DrawnCurve& drawn, const Frame& frame, const CurveChart& chart) {
  if (drawn.points.size() > kMostDots) return {};
  std::string svg;
  for (const ColumnPoint& point : drawn.points) {
    svg += fmt::format(
        "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"><title>{} {}\n{}: {} "
        "{}</title></circle>\n",
        curve_class(drawn.curve->color), frame.x(point.x), frame.y(point.y), in_markup(chart.x_title),
        number_text(point.x), in_markup(drawn.curve->name), number_text(point.y), in_markup(chart.unit));
  }
  return svg;
}

// Pointer areas with tooltips: one per column, or one around each point if there are few.
std::string places_of(const std::vector<DrawnCurve>& curves, const Frame& frame, const CurveChart& chart,
                      double x_low, double x_high) {
  std::set<double> distinct;
  for (const DrawnCurve& drawn : curves)
    for (const ColumnPoint& point : drawn.points) distinct.insert(point.x);
  std::vector<double> bounds = {x_low};
  if (distinct.size() <= kColumns)
    for (auto at = distinct.begin(); std::next(at) != distinct.end(); ++at)
      bounds.push_back((*at + *std::next(at)) / 2);
  else
    for (std::size_t i = 1; i < kColumns; ++i)
      bounds.push_back(x_low + (x_high - x_low) * static_cast<double>(i) / static_cast<double>(kColumns));
  bounds.push_back(x_high);
  std::vector<std::size_t> next(curves.size());
  std::string svg = "<g class=\"places\">\n";
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::string text;
    double x = 0;
    for (std::size_t c = 0; c < curves.size(); ++c) {
      const std::vector<ColumnPoint>& points = curves[c].points;
      const bool last = i + 2 == bounds.size();
      std::size_t& at = next[c];
      if (at == points.size() || (!last && points[at].x > bounds[i + 1])) continue;
      const ColumnPoint& point = points[at];
      x = point.x;
      text += fmt::format("\n{}: {} {}", in_markup(curves[c].curve->name), number_text(point.y),
                          in_markup(chart.unit));
      if (point.points > 1)
        text += fmt::format(" ({} to {})", number_text(point.low), number_text(point.high));
      while (at < points.size() && (last || points[at].x <= bounds[i + 1])) ++at;
    }
    if (!text.empty())
      svg += frame.place(bounds[i], bounds[i + 1],
                         fmt::format("{} {}{}", in_markup(chart.x_title), number_text(x), text));
  }
  return svg + "</g>\n";
}

std::string step_area(const std::vector<AccountPoint>& points,
                      const std::vector<std::pair<double, double>>& shares, double x_begin,
                      const Frame& frame) {
  std::string above, below;
  double begin = x_begin;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double left = frame.x(begin), right = frame.x(points[i].step);
    const auto [low, high] = shares[i];
    above += fmt::format("{}{:.1f} {:.1f}H{:.1f}", above.empty() ? "M" : "L", left, frame.y(high), right);
    below.insert(0, fmt::format("L{:.1f} {:.1f}H{:.1f}", right, frame.y(low), left));
    begin = points[i].step;
  }
  return above + below + "Z";
}

}  // namespace

std::string to_figure(const CurveChart& chart) {
  std::vector<DrawnCurve> curves;
  std::vector<double> xs, ys;
  std::size_t thinned_from = 0;
  for (const Curve& curve : chart.curves) {
    DrawnCurve drawn{.curve = &curve, .points = thinned(curve.points, kColumns)};
    if (drawn.points.empty()) continue;
    drawn.thin = std::ranges::any_of(drawn.points, [](const ColumnPoint& point) { return point.points > 1; });
    if (drawn.thin) thinned_from = std::max(thinned_from, curve.points.size());
    for (const ColumnPoint& point : drawn.points) {
      xs.push_back(point.x);
      ys.insert(ys.end(), {point.low, point.high});
    }
    curves.push_back(std::move(drawn));
  }
  if (curves.empty()) return {};
  if (chart.from_zero) ys.push_back(0);
  if (chart.top > 0) ys.push_back(chart.top);
  const auto [x_least, x_high] = std::ranges::minmax(xs);
  const double x_low = x_least > 0 && x_least <= x_high / 2 ? 0 : x_least;
  const auto [y_low, y_high] = std::ranges::minmax(ys);
  const Frame frame(x_low, x_high, y_low, y_high);
  std::string inside = frame.axes(chart.x_title, chart.unit), legend;
  for (const DrawnCurve& drawn : curves) {
    inside += drawing_of(drawn, frame);
    legend += legend_entry(curve_class(drawn.curve->color), drawn.curve->name, drawn.curve->dashed);
  }
  inside += places_of(curves, frame, chart, x_low, x_high);
  for (const DrawnCurve& drawn : curves) inside += dots_of(drawn, frame, chart);
  return figure_of(chart.title, chart.legend && curves.size() > 1 ? legend : "", svg_of(chart.title, inside),
                   thinned_from);
}

std::string account_figure(const std::string& title, const std::vector<AccountPoint>& all) {
  const std::vector<AccountPoint> points = thinned(all, kColumns);
  const StepAccount total = total_of(points);
  if (!(total.total() > 0)) return {};
  const double begin =
      points.size() > 1 ? std::max(0.0, points[0].step - (points[1].step - points[0].step)) : 0;
  const Frame frame(begin, points.back().step, 0, 100);
  std::string inside = frame.axes("step", "% of the time");
  std::vector<std::pair<double, double>> shares(points.size());
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double whole = points[i].account.total();
      shares[i].first = shares[i].second;
      if (whole > 0) shares[i].second += 100 * points[i].account.seconds[phase] / whole;
    }
    if (total.seconds[phase] > 0)
      inside += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", phase_class(static_cast<Phase>(phase)),
                            step_area(points, shares, begin, frame));
  }
  inside += "<g class=\"places\">\n";
  double left = begin;
  for (const AccountPoint& point : points) {
    std::string text = "up to step " + number_text(point.step);
    for (std::size_t phase = 0; phase < kPhases; ++phase)
      if (const double seconds = point.account.seconds[phase]; seconds > 0)
        text += fmt::format("\n{}: {}", phase_text(static_cast<Phase>(phase)),
                            percent_text(seconds / point.account.total()));
    inside += frame.place(left, point.step, text);
    left = point.step;
  }
  return figure_of(title, "", svg_of(title, inside + "</g>\n"), all.size() > points.size() ? all.size() : 0);
}

std::string account_bar(const StepAccount& account) {
  const double total = account.total();
  std::string html = "<div class=\"account\">";
  for (std::size_t phase = 0; phase < kPhases && total > 0; ++phase) {
    const double share = account.seconds[phase] / total;
    if (share <= 0) continue;
    const std::string name = phase_text(static_cast<Phase>(phase));
    html += fmt::format("<span class=\"{}\" style=\"width:{:.3f}%\" title=\"{}: {}\">{}</span>",
                        phase_class(static_cast<Phase>(phase)), 100 * share, name, percent_text(share),
                        share > 0.06 ? fmt::format("{:.0f}&#8239;%", 100 * share) : "");
  }
  return html + "</div>\n";
}

StepAccount total_of(const std::vector<AccountPoint>& points) {
  StepAccount total;
  for (const AccountPoint& point : points) total += point.account;
  return total;
}

std::string account_legend(const StepAccount& account) {
  std::string legend;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    if (account.seconds[phase] > 0)
      legend +=
          legend_entry(phase_class(static_cast<Phase>(phase)), phase_text(static_cast<Phase>(phase)), false);
  return legend;
}

std::string phase_text(Phase phase) {
  switch (phase) {
    case Phase::data_wait:
      return "waiting for data";
    case Phase::exposed_communication:
      return "exposed communication";
    case Phase::device_wait:
      return "host waits for the device";
    default:
      return std::string(name_of(phase));
  }
}

std::string phase_class(Phase phase) { return fmt::format("p{}", static_cast<int>(phase)); }
std::string curve_class(std::size_t color) { return fmt::format("s{}", color % kCurveColors); }

}  // namespace lockstep
