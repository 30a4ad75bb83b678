// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/ranking.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

using Indices = std::vector<std::size_t>;
using Figure = double SweepMeasure::*;

bool dominates(const SweepMeasure& one, const SweepMeasure& other) {
  const bool as_good = one.accuracy >= other.accuracy && one.samples_per_second >= other.samples_per_second;
  const bool better = one.accuracy > other.accuracy || one.samples_per_second > other.samples_per_second;
  return as_good && better;
}

void sort_by(Indices& indices, std::span<const SweepMeasure> measures, Figure figure) {
  std::ranges::stable_sort(indices, std::greater<>(), [&](std::size_t i) { return measures[i].*figure; });
}

// The members of `among` that no other member dominates.
Indices front_of(const Indices& among, std::span<const SweepMeasure> measures) {
  Indices front;
  for (const std::size_t i : among) {
    const bool beaten =
        std::ranges::any_of(among, [&](std::size_t j) { return dominates(measures[j], measures[i]); });
    if (!beaten) front.push_back(i);
  }
  return front;
}

// Sorts a front by the distance of each member to its neighbours, over both figures; that of the ends is
// infinite.
void sort_by_crowding(Indices& front, std::span<const SweepMeasure> measures) {
  std::vector<double> distance(measures.size(), 0);
  for (const Figure figure : {&SweepMeasure::accuracy, &SweepMeasure::samples_per_second}) {
    Indices order = front;
    sort_by(order, measures, figure);
    const double span = measures[order.front()].*figure - measures[order.back()].*figure;
    distance[order.front()] = distance[order.back()] = std::numeric_limits<double>::infinity();
    for (std::size_t place = 1; place + 1 < order.size() && span > 0; ++place)
      distance[order[place]] +=
          (measures[order[place - 1]].*figure - measures[order[place + 1]].*figure) / span;
  }
  sort_by(front, measures, &SweepMeasure::accuracy);
  std::ranges::stable_sort(front, std::greater<>(), [&](std::size_t i) { return distance[i]; });
}

Indices all_of(std::span<const SweepMeasure> measures) {
  Indices indices(measures.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

}  // namespace

Indices pareto_front(std::span<const SweepMeasure> measures) {
  Indices front = front_of(all_of(measures), measures);
  sort_by(front, measures, &SweepMeasure::accuracy);
  return front;
}

Indices ranked(SweepObjective objective, std::span<const SweepMeasure> measures) {
  Indices left = all_of(measures);
  if (objective != SweepObjective::pareto) {
    sort_by(
        left, measures,
        objective == SweepObjective::accuracy ? &SweepMeasure::accuracy : &SweepMeasure::samples_per_second);
    return left;
  }
  Indices order;
  while (!left.empty()) {
    Indices front = front_of(left, measures);
    std::erase_if(left, [&](std::size_t i) { return std::ranges::count(front, i) > 0; });
    sort_by_crowding(front, measures);
    order.insert(order.end(), front.begin(), front.end());
  }
  return order;
}

}  // namespace lockstep
