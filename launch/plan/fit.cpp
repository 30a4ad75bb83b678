// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "launch/quantile.h"

namespace lockstep {
namespace {

constexpr std::size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

// What a sum has of latency, wire and processing.
Terms terms_of(const MeasuredSum& sum) {
  const double rate = sum.bytes_per_second > 0 ? sum.bytes_per_second : 1;
  return {sum.messages, sum.bytes / rate, sum.bytes};
}

// Least squares of relative errors over the terms that are used, by the normal equations; false where they do
// not tell these terms apart.
bool solve(std::span<const MeasuredSum> sums, const std::vector<std::size_t>& used, Terms& solution) {
  const std::size_t count = used.size();
  Terms scale = {};  // terms differ by many orders of magnitude
  for (const MeasuredSum& sum : sums)
    for (std::size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], terms_of(sum)[i] / sum.seconds);
  double matrix[kTerms][kTerms + 1] = {};
  for (const MeasuredSum& sum : sums) {
    const Terms terms = terms_of(sum);
    for (std::size_t row = 0; row < count; ++row) {
      const double value = terms[used[row]] / sum.seconds / scale[used[row]];
      for (std::size_t column = 0; column < count; ++column)
        matrix[row][column] += value * terms[used[column]] / sum.seconds / scale[used[column]];
      matrix[row][count] += value;
    }
  }
  for (std::size_t pivot = 0; pivot < count; ++pivot) {
    if (std::abs(matrix[pivot][pivot]) < 1e-9 * static_cast<double>(sums.size())) return false;
    for (std::size_t row = 0; row < count; ++row) {
      if (row == pivot) continue;
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (std::size_t column = pivot; column <= count; ++column)
        matrix[row][column] -= factor * matrix[pivot][column];
    }
  }
  solution = {};
  for (std::size_t i = 0; i < count; ++i)
    solution[used[i]] = matrix[i][count] / matrix[i][i] / scale[used[i]];
  return true;
}

double squared_error(std::span<const MeasuredSum> sums, const Terms& solution) {
  double error = 0;
  for (const MeasuredSum& sum : sums) {
    const Terms terms = terms_of(sum);
    double seconds = 0;
    for (std::size_t i = 0; i < kTerms; ++i) seconds += terms[i] * solution[i];
    error += std::pow(seconds / sum.seconds - 1, 2);
  }
  return error;
}

// How long sums were under way while the last backward computed.
double hidden_seconds(const StepTrace::Step& step) {
  double seconds = 0;
  for (const StepTrace::Sum& sum : step.sums)
    seconds += std::max(0.0, std::min(sum.end, step.last_backward) - std::max(sum.begin, 0.0));
  return seconds;
}

}  // namespace

std::vector<MeasuredSum> measured_sums(const StepTrace& trace, AllReduceAlgorithm algorithm,
                                       double bytes_per_second) {
  const TracedRun& run = trace.run;
  if (run.ranks < 2 || (run.nodes > 1 && run.nodes != run.ranks)) {
    throw ConfigError(
        fmt::format("a trace of {} rank{} on {} node{} does not tell what a link costs: give one of "
                    "several ranks on one node, or of one rank on each of several",
                    run.ranks, run.ranks == 1 ? "" : "s", run.nodes, run.nodes == 1 ? "" : "s"));
  }
  AllReducePath path = all_reduce_path(run.ranks, algorithm);
  if (run.nodes == 1) path = {.messages = 2, .volume = 2.0 * (run.ranks - 1) / run.ranks};
  std::vector<MeasuredSum> sums;
  for (std::size_t i = 0; i < run.bucket_bytes.size(); ++i) {
    const double seconds =
        quantile_over(trace.steps, trace.tells_meetings ? 0.5 : 0.25,
                      [&](const StepTrace::Step& step) { return step.sums[i].end - step.sums[i].met; });
    sums.push_back({.messages = path.messages,
                    .bytes = path.volume * static_cast<double>(run.bucket_bytes[i]),
                    .bytes_per_second = bytes_per_second,
                    .seconds = std::max(seconds, 1e-9)});
  }
  return sums;
}

double TierFit::seconds(const MeasuredSum& sum) const {
  const double rate = sum.bytes_per_second > 0 ? sum.bytes_per_second : 1;
  return sum.messages * latency_seconds + sum.bytes * (slowness / rate + seconds_per_byte);
}

// There are few terms: of all sets of them that need none below 0, the one that fits best.
TierFit fit_tier(std::span<const MeasuredSum> sums) {
  CHECK(!sums.empty(), "nothing to fit");
  std::set<double> speeds;
  for (const MeasuredSum& sum : sums) speeds.insert(sum.bytes_per_second);
  const bool tells_processing = speeds.size() > 1;
  Terms best = {};
  double least = -1;
  for (unsigned set = 1; set < 1U << kTerms; ++set) {
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < kTerms; ++i)
      if ((set >> i & 1U) != 0) used.push_back(i);
    Terms solution;
    // A link costs something.
    if ((set & 2U) == 0 || (!tells_processing && (set & 4U) != 0) || !solve(sums, used, solution)) continue;
    if (std::ranges::any_of(solution, [](double value) { return value < 0; })) continue;
    const double error = squared_error(sums, solution);
    if (least >= 0 && error >= least) continue;
    best = solution;
    least = error;
  }
  if (least < 0) throw ConfigError("the traces fit no link: their sums do not take longer for more bytes");
  TierFit fit{.latency_seconds = best[0], .slowness = best[1], .seconds_per_byte = best[2]};
  fit.residual = quantile_over(
      sums, 0.5, [&](const MeasuredSum& sum) { return std::abs(fit.seconds(sum) / sum.seconds - 1); });
  return fit;
}

double pace_beside(const ComputeModel& device, std::span<const StepTrace> runs) {
  std::vector<double> paces;
  for (const StepTrace& run : runs)
    paces.push_back(device.forward_seconds /
                    quantile_over(run.steps, 0.5, [](const StepTrace::Step& step) { return step.forward; }));
  return quantile_over(paces, 0.5, [](double pace) { return pace; });
}

// While sums run for T seconds T / stretch of compute is done: what backward takes longer is
// T (1 - 1 / stretch).
double fit_stretch(const ComputeModel& alone, std::span<const StepTrace> with_sums) {
  double products = 0, squares = 0;
  for (const StepTrace& trace : with_sums) {
    const double hidden = quantile_over(trace.steps, 0.5, hidden_seconds);
    const double backward =
        quantile_over(trace.steps, 0.5, [](const StepTrace::Step& step) { return step.last_backward; });
    const double alone_seconds = alone.backward_seconds / pace_beside(alone, {&trace, 1});
    products += (backward - alone_seconds) * hidden;
    squares += hidden * hidden;
  }
  const double lost = squares > 0 ? std::clamp(products / squares, 0.0, 0.9) : 0;
  return 1 / (1 - lost);
}

}  // namespace lockstep
