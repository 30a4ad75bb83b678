// SPDX-License-Identifier: Apache-2.0
//
// SweepSpace: the settings that a sweep may try. Each axis is a key of the configuration, with the values
// that were listed or a range to draw from. What is drawn depends on the seed, the key and the trial's number
// alone: the same file gives the same trials, whatever was run of them before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/tune/search.h"

namespace lockstep {

// Numbers from min to max, both included.
struct SweepRange {
  double min = 0;
  double max = 1;
  bool logarithmic = false;  // equally many in each decade; min is then above 0
  bool whole = false;        // whole numbers only
};

struct SweepAxis {
  std::string key;                  // "optimizer.learning_rate"
  std::vector<std::string> values;  // in TOML; empty: the range's
  SweepRange range = {};

  bool listed() const { return !values.empty(); }
};

class SweepSpace {
 public:
  SweepSpace() = default;
  explicit SweepSpace(std::vector<SweepAxis> axes) : axes_(std::move(axes)) {}

  const std::vector<SweepAxis>& axes() const { return axes_; }
  // How many settings there are; nothing where an axis is a range.
  std::optional<std::int64_t> size() const;

  // Every setting, the last axis changing fastest. Needs a size().
  std::vector<TuneSettings> grid() const;
  // So many that differ, or as many as there are. Of listed axes each setting once, in a random order.
  std::vector<TuneSettings> draw(std::int64_t count, std::uint64_t seed) const;

 private:
  TuneSettings at(std::int64_t index) const;
  TuneSettings drawn(std::int64_t index, std::uint64_t seed) const;

  std::vector<SweepAxis> axes_;
};

// So many values of a range, evenly spread with both ends, as TOML.
std::vector<std::string> values_of(const SweepRange& range, std::int64_t points);

}  // namespace lockstep
