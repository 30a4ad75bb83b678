// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "launch/agreed_config.h"
#include "launch/commands.h"
#include "launch/job_end.h"
#include "launch/layer_profile.h"
#include "launch/layer_table.h"
#include "launch/progress_meter.h"
#include "launch/terminal.h"
#include "launch/trainer.h"
#include "launch/training.h"
#include "models/work.h"

namespace lockstep {
namespace {

constexpr int kWarmUpSteps = 3;

struct ProfileRun {
  std::unique_ptr<Communicator> communicator;
  std::optional<Training> training;
  std::optional<LayerProfile> profile;
  std::optional<Trainer> trainer;
};

void print_account(const StepAccount& account, int steps) {
  fmt::print("step, {:.1f} ms\n", account.total() / steps * 1e3);
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (account[phase] == 0 && is_of_gpus(phase)) continue;
    fmt::print("  {:<22} {:>8.2f} ms  {:>5.1f} %\n", name_of(phase), account[phase] / steps * 1e3,
               100 * account[phase] / account.total());
  }
}

void print_kinds(const std::vector<LayerProfile::Row>& rows) {
  std::map<std::string, double> kinds;
  double total = 0;
  for (const LayerProfile::Row& row : rows) {
    kinds[row.kind + ", " + row.direction] += row.milliseconds;
    total += row.milliseconds;
  }
  std::vector<std::pair<std::string, double>> sorted(kinds.begin(), kinds.end());
  std::ranges::stable_sort(sorted, std::greater<>(), &std::pair<std::string, double>::second);
  fmt::print("by kind\n");
  for (const auto& [kind, milliseconds] : sorted) {
    fmt::print("  {:<34} {:>8.2f} ms  {:>5.1f} %\n", kind, milliseconds, 100 * milliseconds / total);
  }
}

void print_most_expensive(const std::vector<LayerProfile::Row>& rows) {
  std::string text;
  for (const LayerProfile::Row& row : std::span(rows).first(std::min<std::size_t>(3, rows.size()))) {
    text += fmt::format("{}{} ({}, {:.1f} ms, {:.0f} % of peak)", text.empty() ? "" : "; ", row.name,
                        row.direction, row.milliseconds, 100 * row.share_of_peak);
  }
  print_fitted(fmt::format("most expensive: {}", text));
}

int profile(ProfileRun& run, const Command& command, World& world) {
  run.communicator = world.communicator();
  Communicator& communicator = *run.communicator;
  const std::optional<Config> agreed = agreed_config(communicator, command);
  if (!agreed) return exit_code::done;
  const Config& config = *agreed;
  const bool first = world.rank() == 0;
  Training& training = run.training.emplace(config, world, communicator,
                                            Training::Options{.trace = true, .registry = command.registry});
  run.profile.emplace(training.graph(), training.network(), training.timeline());
  run.trainer.emplace(training.parts(&*run.profile), training.schedule(),
                      TrainerOptions{.accumulation = config.loader.accumulation});

  for (int step = 0; step < kWarmUpSteps; ++step) run.trainer->step();
  run.trainer->take_account();  // which settles those steps
  run.profile->clear();
  training.timeline()->clear();
  {
    ProgressMeter meter("profiling", "steps", find_terminal());
    for (int step = 0; step < command.steps; ++step) {
      run.trainer->step();
      if (first) meter.show(step + 1, command.steps);
    }
  }
  const StepAccount account = run.trainer->take_account();
  Peak peak;
  measure_together(communicator, [&] { peak = training.network().backend().measure_peak(); });
  if (!first) return exit_code::done;

  const auto rows = run.profile->rows(command.steps, peak);
  const double gigaflop = static_cast<double>(training_flops(training.graph())) * 1e-9 *
                          static_cast<double>(config.loader.accumulation);
  print_fitted(fmt::format("{} on {}, {} rank{} x batch {} x accumulation {}, {} threads per rank, {} steps",
                           config.model.name, to_string(training.network().device()), world.size(),
                           world.size() == 1 ? "" : "s", config.loader.batch, config.loader.accumulation,
                           training.threads(), command.steps));
  print_fitted(
      fmt::format("peak of rank 0, measured on all ranks at once: {:.0f} GFLOP/s, {:.1f} GB/s; the step "
                  "reaches {:.0f} GFLOP/s",
                  gigaflops_in(peak, training.network().precision()), peak.gigabytes_per_second,
                  gigaflop * command.steps / account.total()));
  print_account(account, command.steps);
  print_kinds(rows);
  const auto shown =
      std::min(rows.size(), command.rows == 0 ? rows.size() : static_cast<std::size_t>(command.rows));
  print_fitted(fmt::format(
      "by layer, longest first{}",
      shown < rows.size() ? fmt::format(" ({} of {}; --rows 0 for all)", shown, rows.size()) : ""));
  fmt::print("{}", layer_table(rows, shown, find_terminal()));
  print_most_expensive(rows);
  for (const std::string& line : explain_above_peak(rows)) fmt::print("{}\n", line);
  if (!command.trace.empty()) {
    training.timeline()->write_chrome_trace(command.trace, 0);
    print_fitted("the trace is in " + command.trace);
  }
  return exit_code::done;
}

int run_profile(const Command& command, World& world) {
  ProfileRun run;
  return run_or_abort(world, [&] { return profile(run, command, world); });
}

void profile_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  add_trace_flag(app, command);
  app.add_option("--steps", command.steps, "Steps to average over, at most 1000")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  app.add_option("--rows", command.rows, "Rows of the table of layers; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
}

}  // namespace

extern const CommandEntry profile_command = {
    .name = "profile",
    .description = "Train a few steps and print where their time goes, layer by layer",
    .example = "lockstep profile fashion_mnist_resnet20 --steps 20 --trace trace.json",
    .flags = profile_flags,
    .in_world = run_profile};

}  // namespace lockstep
