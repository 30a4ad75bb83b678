// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/random.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

// The value at `share` (0 to 1) of a range: an integer, or a number with 4 significant digits, or more where
// the range is narrow. The ends are exact.
std::string value_at(const SweepRange& range, double share) {
  const double value = range.logarithmic ? range.min * std::pow(range.max / range.min, share)
                                         : range.min + share * (range.max - range.min);
  if (range.whole) return fmt::format("{}", std::llround(std::clamp(value, range.min, range.max)));
  std::string text;
  double rounded = 0;
  for (int digits = 4; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    text = fmt::format("{:.{}g}", value, digits);
    rounded = number_from<double>(text).value_or(value);
    if (std::abs(rounded - value) <= 1e-3 * (range.max - range.min)) break;
  }
  if (share <= 0 || rounded < range.min) return fmt::format("{}", range.min);
  if (share >= 1 || rounded > range.max) return fmt::format("{}", range.max);
  return text;
}

}  // namespace

std::vector<std::string> values_of(const SweepRange& range, std::int64_t points) {
  std::vector<std::string> values;
  for (std::int64_t point = 0; point < points; ++point) {
    const double share = points == 1 ? 0 : static_cast<double>(point) / static_cast<double>(points - 1);
    std::string value = value_at(range, share);
    if (values.empty() || values.back() != value) values.push_back(std::move(value));
  }
  return values;
}

std::optional<std::int64_t> SweepSpace::size() const {
  std::int64_t size = 1;
  for (const SweepAxis& axis : axes_) {
    const auto count = static_cast<std::int64_t>(axis.values.size());
    if (count == 0) return std::nullopt;
    size = size > std::numeric_limits<std::int64_t>::max() / count ? std::numeric_limits<std::int64_t>::max()
                                                                   : size * count;
  }
  return size;
}

TuneSettings SweepSpace::at(std::int64_t index) const {
  TuneSettings settings;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    const auto count = static_cast<std::int64_t>(axis->values.size());
    settings[axis->key] = axis->values[static_cast<std::size_t>(index % count)];
    index /= count;
  }
  return settings;
}

std::vector<TuneSettings> SweepSpace::grid() const {
  const std::optional<std::int64_t> count = size();
  CHECK(count, "a grid needs listed values");
  std::vector<TuneSettings> all;
  for (std::int64_t index = 0; index < *count; ++index) all.push_back(at(index));
  return all;
}

TuneSettings SweepSpace::drawn(std::int64_t index, std::uint64_t seed) const {
  TuneSettings settings;
  for (const SweepAxis& axis : axes_) {
    const double share = Random(seed, "sweep of " + axis.key).uniform(static_cast<std::uint64_t>(index));
    const auto place = static_cast<std::size_t>(share * static_cast<double>(axis.values.size()));
    settings[axis.key] = axis.listed() ? axis.values[place] : value_at(axis.range, share);
  }
  return settings;
}

std::vector<TuneSettings> SweepSpace::draw(std::int64_t count, std::uint64_t seed) const {
  constexpr std::int64_t kShuffled = 1'000'000;  // larger spaces are drawn from one setting at a time
  constexpr std::int64_t kTriesPerTrial = 100;   // draws, as a draw may repeat an earlier one
  const std::optional<std::int64_t> all = size();
  std::vector<TuneSettings> trials;
  if (all && *all <= kShuffled) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(*all));
    std::iota(order.begin(), order.end(), 0);
    const Random random(seed, "order of a sweep");
    for (std::size_t last = order.size(); last > 1; --last)
      std::swap(order[last - 1], order[random.bits(last) % last]);
    order.resize(static_cast<std::size_t>(std::min(count, *all)));
    for (const std::int64_t index : order) trials.push_back(at(index));
    return trials;
  }
  std::set<TuneSettings> there;
  for (std::int64_t index = 0; index < count * kTriesPerTrial && std::ssize(trials) < count; ++index) {
    TuneSettings settings = drawn(index, seed);
    if (there.insert(settings).second) trials.push_back(std::move(settings));
  }
  return trials;
}

}  // namespace lockstep
