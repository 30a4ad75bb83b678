// SPDX-License-Identifier: Apache-2.0
//
// SweepPlan: what a file for `lockstep sweep` asks for, checked whole before anything is trained.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/config/config.h"
#include "launch/sweep/search.h"
#include "launch/sweep/space.h"

namespace lockstep {

enum class SweepMethod { grid, random, halving };
inline constexpr std::string_view kSweepMethodWords[] = {"grid", "random", "halving"};
constexpr std::span<const std::string_view> words_of(SweepMethod) { return kSweepMethodWords; }

struct SweepPlan {
  std::string config;            // a preset or a file
  std::vector<std::string> set;  // "section.key=value", of all trials
  SweepMethod method = SweepMethod::random;
  SweepObjective objective = SweepObjective::accuracy;
  std::int64_t jobs = 0;         // at once; 0: as many as the machine has room for
  std::int64_t ranks = 1;        // of each
  std::int64_t most_trials = 0;  // random and halving; 0: 20, or all where fewer can be listed
  double eta = 3;                // halving
  std::int64_t min_epochs = 1;   // halving: of the first rung
  std::int64_t seed = 1;
  std::string dir = "runs/sweep";
  SweepSpace space;

  Config base;                       // with `set`, without what is searched
  std::vector<TuneSettings> trials;  // what each of them changes

  // Of a search with so many slots.
  SweepRules rules(std::int64_t slots) const;
  // All of what decides which trials there are and what they come to, but the base: for comparison.
  std::string identity() const;
};

// Throws ConfigError with everything that is wrong with the file, a line each, and IoError where it cannot be
// read.
SweepPlan read_sweep(const std::string& path, const Registry& registry);

}  // namespace lockstep
