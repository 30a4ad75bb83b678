// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/charts/svg_chart.h"

#include <limits>
#include <regex>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

struct Pixel {
  double x, y;
};

// The positions of all points, in drawing order.
std::vector<Pixel> circles(const std::string& svg) {
  static const std::regex circle("<circle cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
  std::vector<Pixel> found;
  for (std::sregex_iterator at(svg.begin(), svg.end(), circle), end; at != end; ++at)
    found.push_back({std::stod((*at)[1]), std::stod((*at)[2])});
  return found;
}

// The labels of an axis ("x" or "y") with their pixel along it.
std::vector<std::pair<double, double>> labels(const std::string& svg, const std::string& axis) {
  const std::regex label("<text class=\"" + axis +
                         "\" x=\"([-0-9.]+)\" y=\"([-0-9.]+)\"[^>]*>([^<]*)</text>");
  std::vector<std::pair<double, double>> found;
  for (std::sregex_iterator at(svg.begin(), svg.end(), label), end; at != end; ++at)
    found.emplace_back(std::stod((*at)[3]), std::stod((*at)[axis == "x" ? 1 : 2]) - (axis == "y" ? 4 : 0));
  return found;
}

// Expects elements to open and close in order, attributes in quotes, and no stray < or &. The charts use no
// other XML.
void expect_well_formed(const std::string& svg) {
  static const std::regex token("<(/?)([a-z]+)((?: [a-zA-Z0-9:-]+=\"[^\"<]*\")*)(/?)>|([^<]+)|(<)");
  static const std::regex entity("&(amp|lt|gt|quot);");
  std::vector<std::string> open;
  for (std::sregex_iterator at(svg.begin(), svg.end(), token), end; at != end; ++at) {
    const std::smatch& match = *at;
    ASSERT_FALSE(match[6].matched) << match.position() << ": " << svg.substr(match.position(), 80);
    const std::string text = std::regex_replace(match[3].str() + match[5].str(), entity, "");
    EXPECT_EQ(text.find('&'), std::string::npos) << text;
    if (match[2].str().empty() || match[4].length() > 0) continue;
    if (match[1].length() == 0) {
      open.push_back(match[2]);
    } else {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), match[2]);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

LineChart two_series() {
  return {.title = "cnn, 2 ranks",
          .x_title = "bucket, MiB",
          .y_title = "time, ms",
          .log_x = true,
          .series = {{"step", {{64, 12}, {1, 20}, {8, 10}}}, {"exposed", {{1, 5}, {8, 0}, {64, 2.5}}}}};
}

TEST(SvgChart, PointsMatchTheAxes) {
  const std::string svg = to_svg(two_series());
  expect_well_formed(svg);
  const std::vector<Pixel> points = circles(svg);
  ASSERT_EQ(points.size(), 6u);
  // Sorted by x. On a logarithmic axis 1, 8 and 64 have equal distances.
  EXPECT_LT(points[0].x, points[1].x);
  EXPECT_NEAR(points[1].x - points[0].x, points[2].x - points[1].x, 0.2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(points[i].x, points[3 + i].x);
  // A linear axis that starts at 0.
  const auto ticks = labels(svg, "y");
  ASSERT_GE(ticks.size(), 3u);
  EXPECT_EQ(ticks.front().first, 0);
  EXPECT_EQ(ticks.back().first, 20);
  const double per_unit = (ticks.front().second - ticks.back().second) / 20;
  EXPECT_GT(per_unit, 0);
  const double values[] = {20, 10, 12, 5, 0, 2.5};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(points[i].y, ticks.front().second - values[i] * per_unit, 0.2) << i;
  const auto places = labels(svg, "x");
  ASSERT_EQ(places.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(places[i].second, points[i].x, 0.1);
  EXPECT_EQ(places[1].first, 8);
}

TEST(SvgChart, EscapesTextAndIsDeterministic) {
  LineChart chart = two_series();
  chart.title = "a < b & \"c\"\n\x01 \xc3\xa9";
  chart.series[0].name = "<script>";
  const std::string svg = to_svg(chart);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;   \xc3\xa9<"), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg, to_svg(chart));
}

TEST(SvgChart, OmitsPointsThatAreNotFiniteAndRefusesLogOfZero) {
  LineChart chart = two_series();
  chart.series[0].points.push_back({16, std::numeric_limits<double>::quiet_NaN()});
  chart.series[1].points.push_back({std::numeric_limits<double>::infinity(), 1});
  EXPECT_EQ(to_svg(chart), to_svg(two_series()));
  expect_well_formed(to_svg({.title = "nothing", .log_x = true}));
  expect_well_formed(to_svg({.title = "one", .series = {{"point", {{3, 0}}}}}));
  chart.series[0].points.push_back({0, 1});
  EXPECT_THROW(to_svg(chart), Error);
}

}  // namespace
}  // namespace lockstep
