// SPDX-License-Identifier: Apache-2.0
//
// SweepSpace: the settings that a sweep may try. Each axis is a key of the configuration, with listed values
// or a range to draw from. Draws depend only on the axes, the seed and the trial's number: the same file
// gives the same trials, regardless of which have run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/tune/search.h"

namespace lockstep {

// Numbers from min to max, both included.
struct SweepRange {
  double min = 0;
  double max = 1;
  bool logarithmic = false;  // uniform in the logarithm; min is above 0
  bool whole = false;        // whole numbers only
};

struct SweepAxis {
  std::string key;                  // "optimizer.learning_rate"
  std::vector<std::string> values;  // in TOML; empty: the axis is a range
  SweepRange range = {};

  bool listed() const { return !values.empty(); }
};

class SweepSpace {
 public:
  SweepSpace() = default;
  explicit SweepSpace(std::vector<SweepAxis> axes) : axes_(std::move(axes)) {}

  const std::vector<SweepAxis>& axes() const { return axes_; }
  // The number of settings; nullopt where an axis is a range.
  std::optional<std::int64_t> size() const;

  // Every setting; the last axis changes fastest. Throws Error where an axis is a range.
  std::vector<TuneSettings> grid() const;
  // `count` different settings in random order, or fewer where the space has fewer.
  std::vector<TuneSettings> draw(std::int64_t count, std::uint64_t seed) const;

 private:
  TuneSettings at(std::int64_t index) const;
  TuneSettings drawn(std::int64_t index, std::uint64_t seed) const;

  std::vector<SweepAxis> axes_;
};

// `points` values of a range as TOML, evenly spaced, including both ends; fewer where rounded ones coincide.
std::vector<std::string> values_of(const SweepRange& range, std::int64_t points);

}  // namespace lockstep
