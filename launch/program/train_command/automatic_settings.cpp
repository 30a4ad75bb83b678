// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/automatic_settings.h"

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/find_batch/find_batch.h"
#include "launch/program/find_batch/report.h"
#include "launch/program/tune/bench.h"

namespace lockstep {
namespace {

constexpr double kBatchSeconds = 30;       // time budget of the search, approximate
constexpr int kPairs = 3;                  // comparisons of a precision with fp32 at a time
constexpr std::size_t kMostPairs = 12;     // in all, if they disagree which one is faster
constexpr std::int64_t kStepsAtMost = 20;  // of a block
constexpr double kGain = 1.02;             // smaller gains are not used

std::int64_t found_batch(World& world, Communicator& control, const Config& config,
                         const Registry& registry) {
  Config first = config;
  first.loader.batch = kFirstBatch;
  first.schedule.learning_rate = 0;  // the configured one is meant for another batch, and could diverge
  const FindBatchOptions options{.seconds = kBatchSeconds, .only_figures = true};
  const FindBatchTeller teller{
      .measured = [](const BatchFigure& figure) { log::info("{}", batch_line(figure)); }};
  const FoundBatch found = find_batch(world, control, first, registry, options, teller);
  const std::int64_t batch = smallest_fast_batch(found.figures)->batch;
  log::info(
      "train.batch = \"auto\": using batch {}, the smallest that reaches {:.0f} % of the highest samples/s "
      "(found in {:.0f} s)",
      batch, 100 * BatchSearch::kFast, found.seconds);
  return batch;
}

// Compares the candidate with the bench's configuration until the speedup is above kGain, or at most kGain,
// with the confidence of TuneFigure.
struct Comparison {
  TuneFigure speedup;
  std::string problem;  // why the candidate cannot run; empty otherwise
};
Comparison compare(TuneBench& bench, const Config& candidate) {
  if (const std::vector<std::string> conflicts = conflicts_in(candidate); !conflicts.empty())
    return {.speedup = {}, .problem = conflicts.front()};
  std::vector<double> ratios;
  while (true) {
    const TuneVisit visit = bench.visit(candidate, kPairs);
    if (!visit.problem.empty()) return {.speedup = {}, .problem = visit.problem};
    const std::vector<double> more = ratios_of(visit);
    ratios.insert(ratios.end(), more.begin(), more.end());
    const TuneFigure figure = figure_of(ratios);
    if (figure.low > kGain || figure.high <= kGain || ratios.size() >= kMostPairs)
      return {.speedup = figure, .problem = {}};
  }
}

// The precision with the fastest steps; fp32 if none is faster.
Precision found_precision(World& world, Communicator& control, const Config& config,
                          const Registry& registry) {
  Config tried = config;
  tried.network.precision = Precision::fp32;
  std::optional<log::Quiet> quiet(std::in_place, log::Quiet::Scope::process);
  std::optional<TuneBench> bench;
  try {
    bench.emplace(world, control, tried, registry);
  } catch (const Error& error) {
    if (!is_shortage(error)) throw;
    quiet.reset();
    log::info("train.precision = \"auto\": using bf16; fp32 cannot be used ({})", error.what());
    return Precision::bf16;
  }
  bench->set_turns(bench->calibrate(kStepsAtMost).blocks.front().step_seconds, kStepsAtMost);
  std::vector<Precision> others = {Precision::bf16};
  if (bench->facts().device.kind == DeviceKind::cuda)
    others = {Precision::tf32, Precision::bf16, Precision::fp16};
  Precision fastest = Precision::fp32;
  double most = kGain;
  std::vector<std::string> told;
  for (const Precision precision : others) {
    tried.network.precision = precision;
    const auto [speedup, problem] = compare(*bench, tried);
    told.push_back(problem.empty() ? fmt::format("{} is {:.2f} times as fast as fp32 ({:.2f} to {:.2f})",
                                                 word_of(precision), speedup.ratio, speedup.low, speedup.high)
                                   : fmt::format("{} cannot be used ({})", word_of(precision), problem));
    if (speedup.low <= 1 || speedup.ratio <= most) continue;
    fastest = precision;
    most = speedup.ratio;
  }
  quiet.reset();
  log::info("train.precision = \"auto\": using {}; {}", word_of(fastest), fmt::join(told, ", "));
  return fastest;
}

}  // namespace

Command with_settings_found(World& world, Communicator& control, const Command& command, const Config& config,
                            const ResumeFlags& resume) {
  Command found = command;
  for (const std::string& each : saved_settings(control, config, resume, command.registry))
    found.overrides.push_back(each);
  Config known;
  run_agreed(control, [&] { known = load_config(command.config, found.overrides, command.registry); });
  const bool finds_precision = known.network.precision == Precision::automatic;
  if (finds_precision) known.network.precision = Precision::fp32;
  // The batch first: with a small one all precisions may be equally fast.
  if (known.loader.batch == 0) {
    known.loader.batch = found_batch(world, control, known, command.registry);
    found.overrides.push_back(fmt::format("train.batch={}", known.loader.batch));
  }
  if (finds_precision) {
    const Precision precision = found_precision(world, control, known, command.registry);
    found.overrides.push_back(fmt::format("train.precision={}", word_of(precision)));
  }
  return found;
}

}  // namespace lockstep
