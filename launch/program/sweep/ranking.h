// SPDX-License-Identifier: Apache-2.0
//
// Ranks trained settings by accuracy, by speed, or by both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

enum class SweepObjective { accuracy, samples_per_second, pareto };
inline constexpr std::string_view kSweepObjectiveWords[] = {"accuracy", "samples_per_second", "pareto"};
constexpr std::span<const std::string_view> words_of(SweepObjective) { return kSweepObjectiveWords; }

// The result of a trial.
struct SweepMeasure {
  double accuracy = 0;  // fraction of the test set
  double loss = 0;      // of the test set
  double samples_per_second = 0;
};

// The cost of a trial's network; 0: unknown.
struct SweepCost {
  std::int64_t parameters = 0;
  std::int64_t flops_per_sample = 0;  // of training: forward and backward

  bool operator==(const SweepCost&) const = default;
};

// Indices of the measures, the best first, ties in their order. pareto: successive Pareto fronts, each sorted
// by crowding distance (Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002,
// section III).
std::vector<std::size_t> ranked(SweepObjective objective, std::span<const SweepMeasure> measures);

// Indices of the measures that no other one dominates, the most accurate first. A measure dominates another
// if it is better in accuracy or speed, and at least as good in the other figure.
std::vector<std::size_t> pareto_front(std::span<const SweepMeasure> measures);

}  // namespace lockstep
