// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_search.h"

#include <algorithm>

namespace lockstep {

const BatchFigure* figure_of_batch(const std::vector<BatchFigure>& figures, std::int64_t batch) {
  const auto found = std::ranges::find(figures, batch, &BatchFigure::batch);
  return found == figures.end() || !found->measured() ? nullptr : &*found;
}

const BatchFigure* fastest_batch(const std::vector<BatchFigure>& figures) {
  const BatchFigure* best = nullptr;
  for (const BatchFigure& each : figures)
    if (each.measured() && (best == nullptr || each.samples_per_second > best->samples_per_second))
      best = &each;
  return best;
}

const BatchFigure* smallest_fast_batch(const std::vector<BatchFigure>& figures) {
  const BatchFigure* best = fastest_batch(figures);
  if (best == nullptr) return nullptr;
  const BatchFigure* found = best;
  for (const BatchFigure& each : figures) {
    const bool fast =
        each.measured() && each.samples_per_second >= BatchSearch::kFast * best->samples_per_second;
    if (fast && each.batch < found->batch) found = &each;
  }
  return found;
}

std::int64_t BatchLimits::suited(std::int64_t batch) const {
  const std::int64_t step = batch >= multiple ? multiple : least;
  return batch / step * step;
}

void BatchSearch::tell(const BatchFigure& figure) {
  const auto place = std::ranges::lower_bound(figures_, figure.batch, {}, &BatchFigure::batch);
  figures_.insert(place, figure);
  if (!figure.measured()) limits_.most = std::min(limits_.most, limits_.suited(figure.batch - 1));
}

bool BatchSearch::known(std::int64_t batch) const {
  return std::ranges::find(figures_, batch, &BatchFigure::batch) != figures_.end();
}

std::vector<const BatchFigure*> BatchSearch::measured() const {
  std::vector<const BatchFigure*> found;
  for (const BatchFigure& each : figures_)
    if (each.measured()) found.push_back(&each);
  return found;
}

// Twice the largest, unless neither of the two largest was faster than all smaller ones by kLeastGain.
std::optional<std::int64_t> BatchSearch::larger() const {
  constexpr double kLeastGain = 0.02;
  const std::vector<const BatchFigure*> known = measured();
  int without_gain = 0;
  double best = 0;
  for (const BatchFigure* each : known) {
    const bool gains = each->samples_per_second > (1 + kLeastGain) * best;
    without_gain = gains ? 0 : without_gain + 1;
    best = std::max(best, each->samples_per_second);
  }
  const std::int64_t twice = limits_.suited(2 * known.back()->batch);
  if (without_gain >= 2 || twice > limits_.most) return std::nullopt;
  return twice;
}

// Half the smallest, if the smallest is fast.
std::optional<std::int64_t> BatchSearch::smaller() const {
  const BatchFigure& smallest = *measured().front();
  const std::int64_t half = limits_.suited(smallest.batch / 2);
  if (half < limits_.least || half >= smallest.batch) return std::nullopt;
  if (smallest.samples_per_second < kFast * fastest_batch(figures_)->samples_per_second) return std::nullopt;
  return half;
}

// The suitable batch nearest to the start, if the start is not suitable but fast enough to be recommended.
std::optional<std::int64_t> BatchSearch::beside() const {
  const std::int64_t below = limits_.suited(limits_.start), above = below + limits_.multiple;
  const BatchFigure* first = figure_of_batch(figures_, limits_.start);
  if (below == limits_.start || first == nullptr || below < limits_.least) return std::nullopt;
  if (first->samples_per_second < kFast * fastest_batch(figures_)->samples_per_second) return std::nullopt;
  const bool nearer_above = above - limits_.start < limits_.start - below && above <= limits_.most;
  const std::int64_t batch = nearer_above ? above : below;
  return known(batch) ? std::nullopt : std::optional(batch);
}

// The middle between the smallest fast batch and the next smaller measured one.
std::optional<std::int64_t> BatchSearch::between() const {
  const std::int64_t fast = smallest_fast_batch(figures_)->batch;
  std::int64_t slow = 0;
  for (const BatchFigure& each : figures_)
    if (each.batch < fast) slow = each.batch;
  const std::int64_t middle = limits_.suited((slow + fast) / 2);
  const bool wide = slow > 0 && 2 * slow >= fast && 3 * (fast - slow) > fast;
  if (!wide || middle <= slow || middle >= fast || known(middle)) return std::nullopt;
  return middle;
}

// Scales the time of the next smaller batch, or takes that of the smallest.
double BatchSearch::cost_of(std::int64_t batch) const {
  double cost = 0;
  for (const BatchFigure* each : measured()) {
    if (each->batch > batch && cost > 0) break;
    cost = each->seconds * std::max(1.0, static_cast<double>(batch) / static_cast<double>(each->batch));
  }
  return cost;
}

std::optional<std::int64_t> BatchSearch::next(double seconds_left) const {
  if (measured().empty()) {
    // If a batch does not fit, half of it is tried next.
    const std::int64_t largest = figures_.empty() ? limits_.most : figures_.front().batch / 2;
    const std::int64_t batch = limits_.start <= largest ? limits_.start : limits_.suited(largest);
    return batch < limits_.least ? std::nullopt : std::optional(batch);
  }
  for (const std::optional<std::int64_t>& batch : {larger(), smaller(), beside(), between()})
    if (batch && cost_of(*batch) <= seconds_left) return batch;
  return std::nullopt;
}

}  // namespace lockstep
