// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/text.h"
#include "launch/train/clock/least_squares.h"
#include "launch/train/quantile.h"

namespace lockstep {
namespace {

// Weights the relative error of a sum's time by its bytes.
FitEquation equation_of(const MeasuredSum& sum, double weight) {
  const double rate = sum.bytes_per_second > 0 ? sum.bytes_per_second : 1;
  const double scale = weight * sum.bytes / sum.seconds;
  return {.terms = {scale * sum.messages, scale * sum.bytes / rate, scale * sum.bytes},
          .value = weight * sum.bytes};
}

// Seconds of a sum during which the last backward computed.
double hidden_seconds(const StepTrace::Step& step, const StepTrace::Sum& sum) {
  return std::max(0.0, std::min(sum.end, step.last_backward) - std::max(sum.begin, 0.0));
}

double hidden_share(const StepTrace::Step& step, const StepTrace::Sum& sum) {
  return sum.end > sum.begin ? hidden_seconds(step, sum) / (sum.end - sum.begin) : 0;
}

AllReducePath path_of(const TracedRun& run) {
  // Ranks of a node exchange directly.
  return run.nodes > 1 ? all_reduce_path(run.ranks, run.between_nodes)
                       : AllReducePath{.messages = 2, .volume = 2.0 * (run.ranks - 1) / run.ranks};
}

// Bytes that the rank sent while the last backward computed.
double hidden_bytes(const StepTrace::Step& step, const TracedRun& run) {
  double bytes = 0;
  for (std::size_t i = 0; i < step.sums.size(); ++i)
    bytes += static_cast<double>(run.bucket_bytes[i]) * hidden_share(step, step.sums[i]);
  return bytes * path_of(run).volume;
}

// The moment at which all ranks have joined a sum. For a sum that directly follows another this is its begin:
// the time until the ranks have met belongs to the wire, which still carries the end of the previous sum.
double met_seconds(const StepTrace::Step& step, std::size_t i) {
  constexpr double kDirectly = 0.0005;
  const StepTrace::Sum& sum = step.sums[i];
  const bool follows = i > 0 && sum.begin - step.sums[i - 1].end < kDirectly;
  return follows ? sum.begin : sum.met;
}

// Weights each sum by weight(sum) in addition to its bytes.
template <typename Weight>
TierFit fit_weighted(std::span<const MeasuredSum> sums, Weight weight) {
  CHECK(!sums.empty(), "there are no sums to fit");
  std::set<double> speeds;
  std::vector<FitEquation> equations;
  double most = 0;
  for (const MeasuredSum& sum : sums) {
    speeds.insert(sum.bytes_per_second);
    equations.push_back(equation_of(sum, weight(sum)));
    most = std::max(most, weight(sum));
  }
  // Every set has the wire term: a link without a cost per byte is not possible.
  constexpr FitTermSet kLatency = 1, kWire = 2, kProcessing = 4;
  constexpr FitTermSet kSets[] = {kWire, kWire | kLatency, kWire | kProcessing,
                                  kWire | kLatency | kProcessing};
  const bool tells_processing = speeds.size() > 1;
  const std::optional<FitTerms> best = fit_terms(equations, std::span(kSets).first(tells_processing ? 4 : 2));
  if (!best)
    throw ConfigError(
        "the traces do not fit a link, because larger sums do not take longer; trace more steps");
  TierFit fit{.latency_seconds = (*best)[0], .slowness = (*best)[1], .seconds_per_byte = (*best)[2]};
  std::vector<double> errors;
  for (const MeasuredSum& sum : sums)
    if (weight(sum) >= most / 2) errors.push_back(std::abs(fit.seconds(sum) / sum.seconds - 1));
  fit.residual = median_of(errors);
  return fit;
}

template <typename Weight>
bool tells_of_every_link(std::span<const MeasuredSum> sums, Weight weight) {
  constexpr double kEnough = 0.1;  // of the bytes of each link speed
  std::map<double, std::pair<double, double>> links;
  for (const MeasuredSum& sum : sums) {
    auto& [of_kind, all] = links[sum.bytes_per_second];
    of_kind += weight(sum) * sum.bytes;
    all += sum.bytes;
  }
  return std::ranges::all_of(
      links, [](const auto& link) { return link.second.first >= kEnough * link.second.second; });
}

}  // namespace

std::vector<MeasuredSum> measured_sums(const StepTrace& trace, double bytes_per_second) {
  const TracedRun& run = trace.run;
  if (run.ranks < 2 || (run.nodes > 1 && run.nodes != run.ranks)) {
    throw ConfigError(
        fmt::format("a trace of {} on {} does not measure a link; use a trace of several ranks on one node, "
                    "or of one rank on each of several nodes",
                    counted(run.ranks, "rank"), counted(run.nodes, "node")));
  }
  if (run.nodes > 1 && run.between_nodes == AllReduceWay::mpi)
    throw ConfigError(
        "a trace with comm.between_nodes = mpi does not measure Lockstep's own sums; trace with "
        "comm.between_nodes = auto, direct or halving");
  const AllReducePath path = path_of(run);
  std::vector<MeasuredSum> sums;
  for (std::size_t i = 0; i < run.bucket_bytes.size(); ++i) {
    const double seconds =
        quantile_over(trace.steps, trace.tells_meetings ? 0.5 : 0.25,
                      [&](const StepTrace::Step& step) { return step.sums[i].end - met_seconds(step, i); });
    sums.push_back({.messages = path.messages,
                    .bytes = path.volume * static_cast<double>(run.bucket_bytes[i]),
                    .bytes_per_second = bytes_per_second,
                    .seconds = std::max(seconds, 1e-9),
                    .beside_compute = quantile_over(trace.steps, 0.5, [&](const StepTrace::Step& step) {
                      return hidden_share(step, step.sums[i]);
                    })});
  }
  return sums;
}

double TierFit::seconds(const MeasuredSum& sum) const {
  const double rate = sum.bytes_per_second > 0 ? sum.bytes_per_second : 1;
  return sum.messages * latency_seconds + sum.bytes * (slowness / rate + seconds_per_byte);
}

TierFit fit_tier(std::span<const MeasuredSum> sums) {
  return fit_weighted(sums, [](const MeasuredSum&) { return 1.0; });
}

LinkFit fit_link(std::span<const MeasuredSum> sums) {
  const auto beside = [](const MeasuredSum& sum) { return sum.beside_compute; };
  const auto waited_for = [](const MeasuredSum& sum) { return 1 - sum.beside_compute; };
  if (tells_of_every_link(sums, beside) && tells_of_every_link(sums, waited_for))
    return {.waited_for = fit_weighted(sums, waited_for), .beside_compute = fit_weighted(sums, beside)};
  const TierFit all = fit_tier(sums);
  return {.waited_for = all, .beside_compute = all};
}

double slowdown_of(const TracedRun& run) {
  const NodeCores node{.threads_per_rank = run.threads, .cores = run.node_cores};
  return node.slowdown(run.ranks_per_node());
}

double pace_beside(const ComputeModel& device, std::span<const StepTrace> runs) {
  std::vector<double> paces;
  for (const StepTrace& run : runs) {
    const double forward =
        quantile_over(run.steps, 0.5, [](const StepTrace::Step& step) { return step.forward; });
    paces.push_back(device.forward_seconds / (forward / slowdown_of(run.run)));
  }
  return median_of(paces);
}

ComputeLoss fit_loss(const ComputeModel& alone, std::span<const StepTrace> with_sums) {
  std::vector<FitEquation> equations;
  bool on_cores = false;
  for (const StepTrace& trace : with_sums) {
    using Step = StepTrace::Step;
    on_cores |= trace.run.threads > 0;
    const auto median = [&](const auto& value) { return quantile_over(trace.steps, 0.5, value); };
    const double seconds = median([](const Step& step) {
      double all = 0;
      for (const StepTrace::Sum& sum : step.sums) all += hidden_seconds(step, sum);
      return all;
    });
    const double bytes = median([&](const Step& step) { return hidden_bytes(step, trace.run); });
    const double slowdown = slowdown_of(trace.run);
    const double undisturbed = slowdown * alone.backward_seconds / pace_beside(alone, {&trace, 1});
    const double lost = median([](const Step& step) { return step.last_backward; }) - undisturbed;
    equations.push_back({.terms = {seconds, slowdown * bytes}, .value = std::max(0.0, lost)});
  }
  constexpr FitTermSet kBySeconds = 1, kByBytes = 2;
  const FitTermSet likelier = on_cores ? kByBytes : kBySeconds;
  const FitTermSet sets[] = {likelier, kBySeconds | kByBytes, kBySeconds, kByBytes};
  const FitTerms loss = fit_terms(equations, sets).value_or(FitTerms());
  constexpr double kMost = 0.9;
  return {.per_second = std::min(kMost, loss[0]), .per_byte = loss[1]};
}

}  // namespace lockstep
