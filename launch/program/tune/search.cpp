// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "launch/train/quantile.h"

namespace lockstep {
namespace {

constexpr double kConfirmingShare = 0.25;  // of the budget
constexpr int kMostConfirmingPairs = 24;
constexpr int kPairsOfTheLast = 6;    // of a dimension's winner, before the next one builds on it
constexpr int kLeastPairsToLead = 2;  // one pair has no spread

// The probability of at most `count` heads in `tosses` tosses of a coin.
double at_most_heads(int count, int tosses) {
  double term = std::pow(0.5, tosses), sum = 0;
  for (int i = 0; i <= count; ++i) {
    sum += term;
    term *= static_cast<double>(tosses - i) / (i + 1);
  }
  return sum;
}

// The number of lowest and of highest values of n to leave out, so that the rest encloses the median with a
// probability of 95 %.
int left_out_of(int n) {
  int count = 0;
  while (2 * at_most_heads(count, n) <= 0.05) ++count;
  return std::max(count - 1, 0);
}

}  // namespace

std::string describe(const TuneSettings& settings) {
  if (settings.empty()) return "as configured";
  std::vector<std::string> parts;
  for (const auto& [key, value] : settings) parts.push_back(fmt::format("{}={}", key, value));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<double> ratios_of(const TuneVisit& visit) {
  std::vector<double> ratios;
  for (std::size_t i = 1; i + 1 < visit.blocks.size(); i += 2) {
    const double around = (visit.blocks[i - 1].step_seconds + visit.blocks[i + 1].step_seconds) / 2;
    ratios.push_back(around / visit.blocks[i].step_seconds);
  }
  return ratios;
}

TuneFigure figure_of(std::vector<double> ratios) {
  if (ratios.empty()) return {};
  std::ranges::sort(ratios);
  const auto count = static_cast<int>(ratios.size());
  const auto out = static_cast<std::size_t>(left_out_of(count));
  return {.ratio = median_of(ratios),
          .low = ratios[out],
          .high = ratios[ratios.size() - 1 - out],
          .pairs = count};
}

std::string describe(const TuneFigure& figure) {
  return fmt::format("{:.3f}x ({:.3f} to {:.3f})", figure.ratio, figure.low, figure.high);
}

TuneSearch::TuneSearch(const TuneBudget& budget, Measure measure)
    : budget_(budget), measure_(std::move(measure)) {
  CHECK(budget.pair_cost > 0);
  outcome_.spent = budget.spent;
}

TuneOutcome TuneSearch::run(const std::vector<TuneStage>& stages) {
  const double for_choosing = (1 - kConfirmingShare) * budget_.total;
  double weights = 0;
  for (const TuneStage& stage : stages) weights += stage.weight;
  for (const TuneStage& stage : stages) {
    // The stage also gets its share of the budget that earlier stages did not spend.
    run_stage(stage, (for_choosing - outcome_.spent) * stage.weight / weights);
    weights -= stage.weight;
  }
  confirm();
  return outcome_;
}

void TuneSearch::run_stage(const TuneStage& stage, double share) {
  std::vector<std::size_t> alive;
  for (TuneSettings& settings : stage.field(outcome_.chosen)) {
    alive.push_back(outcome_.candidates.size());
    outcome_.candidates.push_back({.settings = std::move(settings), .stage = stage.name});
  }
  alive = halve(std::move(alive), share);
  if (alive.empty()) return;
  const TuneCandidate& leader = outcome_.candidates[alive.front()];
  const TuneFigure figure = leader.figure();
  if (figure.pairs < kLeastPairsToLead || figure.low <= best_ratio_) return;
  outcome_.chosen = leader.settings;
  best_ratio_ = figure.ratio;
}

// Returns the remaining candidates, the fastest first. When the share of the budget is spent, it ranks them
// by the measurements so far.
std::vector<std::size_t> TuneSearch::halve(std::vector<std::size_t> alive, double share) {
  const double end = outcome_.spent + share;
  const auto is_out = [&](std::size_t i) {
    return outcome_.candidates[i].ratios.empty() || !outcome_.candidates[i].problem.empty();
  };
  int pairs = first_pairs(alive.size(), share);
  while (!alive.empty()) {
    for (const std::size_t i : alive)
      if (outcome_.spent < end) visit(outcome_.candidates[i], pairs);
    std::erase_if(alive, is_out);
    std::ranges::stable_sort(alive, std::greater<>(),
                             [this](std::size_t i) { return outcome_.candidates[i].figure().ratio; });
    if (outcome_.spent >= end || !worth_going_on(alive)) break;
    alive.resize((alive.size() + 1) / 2);
    pairs *= 2;
  }
  return alive;
}

// False for a single candidate with enough pairs, or with no chance to be faster than the best so far.
bool TuneSearch::worth_going_on(const std::vector<std::size_t>& alive) const {
  if (alive.size() != 1) return !alive.empty();
  const TuneFigure figure = outcome_.candidates[alive.front()].figure();
  return figure.pairs < kPairsOfTheLast && figure.high > best_ratio_;
}

void TuneSearch::visit(TuneCandidate& candidate, int pairs) {
  const TuneVisit visit = measure_({.settings = candidate.settings, .pairs = pairs});
  outcome_.spent += budget_.cost_of(visit);
  candidate.problem = visit.problem;
  const std::vector<double> ratios = ratios_of(visit);
  candidate.ratios.insert(candidate.ratios.end(), ratios.begin(), ratios.end());
  for (std::size_t i = 0; i < visit.blocks.size(); ++i)
    (i % 2 == 1 ? candidate.blocks : outcome_.default_blocks).push_back(visit.blocks[i]);
}

// Two where the share allows it. Each round costs about the same: half the candidates, twice the pairs.
int TuneSearch::first_pairs(std::size_t candidates, double share) const {
  const auto count = static_cast<double>(candidates);
  const double rounds = 1 + std::ceil(std::log2(std::max(count, 1.0)));
  return rounds * count * 2 * budget_.pair_cost <= share ? 2 : 1;
}

std::string TuneSearch::why_none_was_chosen() const {
  if (outcome_.candidates.empty()) return "there were no other settings to try";
  const bool measured = std::ranges::any_of(
      outcome_.candidates, [](const TuneCandidate& candidate) { return !candidate.ratios.empty(); });
  return measured ? "no other settings were faster beyond noise" : "no other settings could be measured";
}

void TuneSearch::confirm() {
  if (outcome_.chosen.empty()) {
    outcome_.reason = why_none_was_chosen();
    return;
  }
  const double fits = (budget_.total - outcome_.spent) / budget_.pair_cost;
  const int pairs = static_cast<int>(
      std::clamp(fits, static_cast<double>(kConfirmingPairs), static_cast<double>(kMostConfirmingPairs)));
  const TuneVisit visit = measure_({.settings = outcome_.chosen, .pairs = pairs, .confirms = true});
  outcome_.spent += budget_.cost_of(visit);
  outcome_.confirmation = ratios_of(visit);
  for (std::size_t i = 0; i < visit.blocks.size(); ++i)
    (i % 2 == 1 ? outcome_.confirmed_blocks : outcome_.default_blocks).push_back(visit.blocks[i]);
  const TuneFigure figure = figure_of(outcome_.confirmation);
  const std::string evidence = fmt::format("{} of the default's samples/s over {} pairs of measurements",
                                           describe(figure), figure.pairs);
  if (!visit.problem.empty()) {
    outcome_.reason = "the confirmation of the best settings failed: " + visit.problem;
  } else if (figure.low > 1) {
    outcome_.winner = outcome_.chosen;
    outcome_.reason = evidence;
  } else {
    outcome_.reason = fmt::format("{} gave {}, which is within noise", describe(outcome_.chosen), evidence);
  }
}

}  // namespace lockstep
