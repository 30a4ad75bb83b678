// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/charts/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "launch/observe/charts/markup.h"

namespace lockstep {
namespace {

// Okabe and Ito's colours, which colour-blind people can distinguish.
constexpr std::array<const char*, 6> kSeriesColors = {"#0072b2", "#d55e00", "#009e73",
                                                      "#cc79a7", "#e69f00", "#56b4e9"};
constexpr double kLeft = 70, kRight = 24, kTop = 72, kBottom = 58;  // margins of the frame
constexpr double kLeastTickDistance = 30;                           // pixels, so that labels do not touch
constexpr double kLetterWidth = 7;                                  // pixels, approximately
constexpr int kWantedTicks = 6;

// An axis of the frame; maps values to pixels.
struct Axis {
  double low = 0, high = 1;      // values at its ends
  double begin = 0, length = 1;  // pixels; a negative length goes up
  bool logarithmic = false;
  std::vector<double> ticks = {};

  double pixel(double value) const {
    const double share =
        logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin + share * length;
  }
};

// Returns the places that get a label; skips those too close to the previous label.
std::vector<double> ticks_at(std::vector<double> places, const Axis& axis) {
  std::ranges::sort(places);
  std::vector<double> ticks;
  for (const double place : places) {
    if (ticks.empty() || axis.pixel(place) - axis.pixel(ticks.back()) >= kLeastTickDistance)
      ticks.push_back(place);
  }
  return ticks;
}

Axis log_axis(const std::vector<double>& places, double begin, double length) {
  Axis axis{.begin = begin, .length = length, .logarithmic = true};
  const auto [least, most] = std::ranges::minmax(places);
  CHECK(least > 0, "a logarithmic axis needs values above 0, got {}", least);
  constexpr double kRoom = 1.15;  // factor of room around the outermost points
  axis.low = least / kRoom;
  axis.high = most * kRoom;
  axis.ticks = ticks_at(places, axis);
  return axis;
}

Axis linear_axis(double low, double high, double begin, double length) {
  Axis axis{.begin = begin, .length = length};
  axis.ticks = round_ticks(low, high, kWantedTicks);
  axis.low = axis.ticks.front();
  axis.high = axis.ticks.back();
  return axis;
}

class Picture {
 public:
  explicit Picture(const LineChart& chart);
  std::string text() &&;

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }
  void draw_titles();
  void draw_axes();
  void draw_legend();
  void draw_series(const ChartSeries& series, const char* color);

  const LineChart& chart_;
  std::vector<ChartSeries> series_;  // finite points only, sorted by x
  Axis x_, y_;
  std::string svg_;
};

Picture::Picture(const LineChart& chart) : chart_(chart), series_(chart.series) {
  std::vector<double> xs, ys = {0};
  for (ChartSeries& series : series_) {
    std::erase_if(series.points,
                  [](const ChartPoint& point) { return !std::isfinite(point.x) || !std::isfinite(point.y); });
    std::ranges::stable_sort(series.points, {}, &ChartPoint::x);
    for (const ChartPoint& point : series.points) {
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
  }
  if (xs.empty()) xs = {1};
  const double width = chart.width - kLeft - kRight, height = chart.height - kTop - kBottom;
  const auto [left, right] = std::ranges::minmax(xs);
  const auto [lowest, highest] = std::ranges::minmax(ys);
  x_ = chart.log_x ? log_axis(xs, kLeft, width) : linear_axis(left, right, kLeft, width);
  y_ = linear_axis(lowest, highest, chart.height - kBottom, -height);
}

void Picture::draw_titles() {
  const double middle = kLeft + x_.length / 2;
  add("<text x=\"{:.1f}\" y=\"26\" text-anchor=\"middle\" font-size=\"16\" font-weight=\"bold\">{}</text>\n",
      middle, in_markup(chart_.title));
  add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", middle, chart_.height - 14,
      in_markup(chart_.x_title));
  const double y = y_.begin + y_.length / 2;
  add("<text x=\"18\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {0:.1f})\">{1}</text>\n",
      y, in_markup(chart_.y_title));
}

void Picture::draw_axes() {
  const double top = y_.begin + y_.length, right = x_.begin + x_.length;
  for (const double tick : y_.ticks) {
    const double y = y_.pixel(tick);
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft, y,
        right, y);
    add("<text class=\"y\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>\n", kLeft - 8, y + 4,
        tick);
  }
  for (const double tick : x_.ticks) {
    const double x = x_.pixel(tick);
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#333333\"/>\n", x,
        y_.begin, y_.begin + 5);
    add("<text class=\"x\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.6g}</text>\n", x,
        y_.begin + 20, tick);
  }
  add("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"#333333\"/>\n", kLeft, top,
      y_.begin, right);
}

void Picture::draw_legend() {
  double x = kLeft;
  for (std::size_t i = 0; i < series_.size(); ++i) {
    const char* color = kSeriesColors[i % kSeriesColors.size()];
    add("<line x1=\"{:.1f}\" y1=\"48\" x2=\"{:.1f}\" y2=\"48\" stroke=\"{}\" stroke-width=\"2\"/>\n", x,
        x + 22, color);
    add("<text x=\"{:.1f}\" y=\"52\">{}</text>\n", x + 28, in_markup(series_[i].name));
    x += 52 + kLetterWidth * static_cast<double>(series_[i].name.size());
  }
}

void Picture::draw_series(const ChartSeries& series, const char* color) {
  std::string line;
  for (const ChartPoint& point : series.points) add_point(line, x_.pixel(point.x), y_.pixel(point.y));
  if (!line.empty()) add("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", line, color);
  for (const ChartPoint& point : series.points) {
    add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}: {:.6g}, "
        "{:.6g}</title></circle>\n",
        x_.pixel(point.x), y_.pixel(point.y), color, in_markup(series.name), point.x, point.y);
  }
}

std::string Picture::text() && {
  add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
  draw_titles();
  draw_axes();
  draw_legend();
  for (std::size_t i = 0; i < series_.size(); ++i)
    draw_series(series_[i], kSeriesColors[i % kSeriesColors.size()]);
  return svg_element(chart_.width, chart_.height,
                     " font-family=\"sans-serif\" font-size=\"12\" fill=\"#333333\"", svg_);
}

}  // namespace

std::string to_svg(const LineChart& chart) { return Picture(chart).text(); }

std::string to_svg(std::span<const LineChart> charts) {
  double width = 0, height = 0;
  std::string pictures;
  for (const LineChart& chart : charts) {
    const std::string picture = to_svg(chart);
    constexpr std::string_view kBegin = "<svg ";
    pictures += fmt::format("<svg y=\"{:.0f}\" {}", height, picture.substr(kBegin.size()));
    width = std::max(width, chart.width);
    height += chart.height;
  }
  return svg_element(width, height, "", pictures);
}

}  // namespace lockstep
