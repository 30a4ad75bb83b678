// SPDX-License-Identifier: Apache-2.0
//
// SweepPlan: the content of a file for `lockstep sweep`, validated completely before any training.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/program/config/config.h"
#include "launch/program/sweep/search.h"
#include "launch/program/sweep/space.h"

namespace lockstep {

enum class SweepMethod { grid, random, halving };
inline constexpr std::string_view kSweepMethodWords[] = {"grid", "random", "halving"};
constexpr std::span<const std::string_view> words_of(SweepMethod) { return kSweepMethodWords; }

struct SweepPlan {
  std::string config;            // a preset or a file
  std::vector<std::string> set;  // "section.key=value", for all trials
  SweepMethod method = SweepMethod::random;
  SweepObjective objective = SweepObjective::accuracy;
  std::int64_t jobs = 0;         // at once; 0: as many as fit the machine
  std::int64_t ranks = 1;        // of each job
  std::int64_t most_trials = 0;  // random and halving; 0: 20, or the size of a smaller space
  double eta = 3;                // halving
  std::int64_t min_epochs = 1;   // halving: the least of the first rung
  std::int64_t seed = 1;
  std::string dir = "runs/sweep";
  SweepSpace space;

  Config base;                       // with `set`, without searched settings
  std::vector<TuneSettings> trials;  // the settings that each trial changes

  // A trial's own value of a key with integers, or else `common`.
  static std::int64_t integer_of(const TuneSettings& trial, const std::string& key, std::int64_t common);
  // The rules of a search with `slots` slots.
  SweepRules rules(std::int64_t slots) const;
  // A text, for comparison, of everything but the base that determines the trials and their results.
  std::string identity() const;
};

// Throws ConfigError with all errors of the file, one a line, and IoError where it cannot be read.
SweepPlan read_sweep(const std::string& path, const Registry& registry);

}  // namespace lockstep
