// SPDX-License-Identifier: Apache-2.0
//
// Which of several trained settings is better: by accuracy, by speed, or by both at once.
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

// What a trial has come to.
struct SweepMeasure {
  double accuracy = 0;  // a fraction, of the test set
  double loss = 0;      // of the test set
  double samples_per_second = 0;
};

// Indices of the measures, the best first; of equal ones the earlier. pareto: fronts of what no other is
// better than in one figure and at least as good in the other, one behind the other, each by its crowding
// distance (Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002, section III).
std::vector<std::size_t> ranked(SweepObjective objective, std::span<const SweepMeasure> measures);

// Indices of those that no other one is better than in accuracy or speed and at least as good in the other,
// the most accurate first.
std::vector<std::size_t> pareto_front(std::span<const SweepMeasure> measures);

}  // namespace lockstep
