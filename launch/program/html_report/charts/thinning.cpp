// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/charts/thinning.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

bool can_be_drawn(double value) { return std::abs(value) < 1e100; }

// Index of the column, of `columns` equal parts of [low, high], that holds the value.
std::size_t column_of(double value, double low, double high, std::size_t columns) {
  const double share = high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0;
  return std::min(static_cast<std::size_t>(share * static_cast<double>(columns)), columns - 1);
}

}  // namespace

std::vector<ColumnPoint> thinned(std::vector<ChartPoint> points, std::size_t columns) {
  std::erase_if(points,
                [](const ChartPoint& point) { return !can_be_drawn(point.x) || !can_be_drawn(point.y); });
  std::ranges::stable_sort(points, {}, &ChartPoint::x);
  std::vector<ColumnPoint> result;
  const bool fit = points.size() <= columns;
  std::size_t current = columns;
  for (const ChartPoint& point : points) {
    const std::size_t column = fit ? 0 : column_of(point.x, points.front().x, points.back().x, columns);
    if (fit || column != current) {
      result.push_back({.x = point.x, .low = point.y, .y = point.y, .high = point.y});
      current = column;
      continue;
    }
    ColumnPoint& mine = result.back();
    const auto share = 1 / static_cast<double>(++mine.points);
    mine.x += (point.x - mine.x) * share;
    mine.y += (point.y - mine.y) * share;
    mine.low = std::min(mine.low, point.y);
    mine.high = std::max(mine.high, point.y);
  }
  return result;
}

std::vector<AccountPoint> thinned(std::span<const AccountPoint> points, std::size_t columns) {
  std::vector<AccountPoint> result;
  const bool fit = points.size() <= columns;
  std::size_t current = columns;
  for (const AccountPoint& point : points) {
    const std::size_t column =
        fit ? 0 : column_of(point.step, points.front().step, points.back().step, columns);
    if (fit || column != current) {
      result.push_back(point);
      current = column;
      continue;
    }
    result.back().step = point.step;
    result.back().account += point.account;
  }
  return result;
}

}  // namespace lockstep
