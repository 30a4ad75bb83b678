// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/text/text.h"
#include "launch/observe/profile/layer_profile.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/html_report/layer_page.h"
#include "launch/program/network/layer_table.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/trainer.h"
#include "models/work.h"

namespace lockstep {
namespace {

constexpr int kWarmUpSteps = 3;

struct HtmlFlag {
  std::string file;
};

struct ProfileRun {
  std::unique_ptr<Communicator> communicator;
  std::optional<TrainingSetup> training;
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

void print_kinds(std::span<const LayerProfile::Row> rows) {
  const double total = sum_of_milliseconds(rows);
  fmt::print("by kind\n");
  for (const auto& [kind, milliseconds] : milliseconds_by_kind(rows))
    fmt::print("  {:<34} {:>8.2f} ms  {:>5.1f} %\n", kind, milliseconds, 100 * milliseconds / total);
}

void print_most_expensive(std::span<const LayerProfile::Row> rows) {
  std::string text;
  for (const LayerProfile::Row& row : rows.first(std::min<std::size_t>(3, rows.size()))) {
    const std::string share =
        row.share_of_peak > 0 ? fmt::format(", {:.0f} % of peak", 100 * row.share_of_peak) : "";
    text += fmt::format("{}{} ({}, {:.1f} ms{})", text.empty() ? "" : "; ", row.name, row.direction,
                        row.milliseconds, share);
  }
  print_fitted(fmt::format("most expensive: {}", text));
}

void print_page(const LayerPage& page, int most_rows) {
  print_fitted(page.network + " " + page.where);
  const std::string peak =
      fmt::format("{:.0f} GFLOP/s, {:.1f} GB/s", page.peak_gigaflops, page.peak_gigabytes);
  print_fitted(
      fmt::format("peak of rank 0, measured on all ranks at once: {}; the step reaches {:.0f} GFLOP/s",
                  page.peak_gigaflops > 0 ? peak : "-", page.step_gigaflops));
  print_account(page.account, page.steps);
  print_kinds(page.rows);
  const std::size_t all = page.rows.size();
  const auto shown = most_rows == 0 ? all : std::min(all, static_cast<std::size_t>(most_rows));
  print_fitted(fmt::format("by layer, longest first{}",
                           shown < all ? fmt::format(" ({} of {}; --rows 0 for all)", shown, all) : ""));
  fmt::print("{}", layer_table(page.rows, shown, find_terminal()));
  print_most_expensive(page.rows);
  for (const std::string& line : explain_above_peak(page.rows)) fmt::print("{}\n", line);
}

std::string where_of(const Config& config, const World& world, TrainingSetup& training, int steps) {
  return fmt::format("on {}, {} x batch {} x accumulation {}, {} per rank, {}",
                     to_string(training.network().device()), counted(world.size(), "rank"),
                     config.loader.batch, config.loader.accumulation, counted(training.threads(), "thread"),
                     counted(steps, "step"));
}

// The keys of the training that the profiled steps leave out.
std::vector<std::string> left_out_keys(const Config& config) {
  std::vector<std::string> keys;
  if (config.gradients.codec == "auto") keys.emplace_back("comm.codec (no codec is tried)");
  if (config.gradients.cross_barrier) keys.emplace_back("comm.cross_barrier");
  if (config.trainer.topology == Topology::ring) keys.emplace_back("comm.topology");
  if (config.trainer.average_every > 1) keys.emplace_back("train.average_every");
  return keys;
}

int profile(ProfileRun& run, const Command& command, World& world) {
  run.communicator = world.communicator();
  Communicator& communicator = *run.communicator;
  const std::optional<Config> agreed = agreed_config(communicator, command);
  if (!agreed) return exit_code::done;
  require_same_flags(communicator, fmt::format("--steps {}", command.steps));
  const std::string& file = command.own<HtmlFlag>().file;
  run_agreed(communicator, [&] {
    if (world.rank() == 0) require_writable(file);
  });
  const Config& config = *agreed;
  TrainingSetup& training = run.training.emplace(
      config, world, communicator, TrainingSetup::Options{.trace = true, .registry = command.registry});
  run.profile.emplace(training.graph(), training.network(), training.timeline());
  run.trainer.emplace(training.parts(&*run.profile), training.schedule(),
                      TrainerOptions{.accumulation = config.loader.accumulation,
                                     .clip_norm = config.trainer.clip_norm,
                                     .ema_decay = config.trainer.ema_decay});
  run.trainer->hold_codecs(true);

  for (int step = 0; step < kWarmUpSteps; ++step) run.trainer->step();
  run.trainer->take_account();  // settles the warm-up steps
  run.profile->clear();
  training.timeline()->clear();
  {
    ProgressMeter meter("profiling", "steps", find_terminal());
    for (int step = 0; step < command.steps; ++step) {
      run.trainer->step();
      if (world.rank() == 0) meter.show(step + 1, command.steps);
    }
  }
  const StepAccount account = run.trainer->take_account();
  Peak peak;
  measure_together(communicator, [&] {
    try {
      peak = training.network().backend().measure_peak();
    } catch (const Error& error) {
      log::info("cannot measure the peak rates of {}, so shares of the peak are not reported: {}",
                to_string(training.network().device()), error.what());
    }
  });
  if (world.rank() != 0) return exit_code::done;

  const auto rows = run.profile->rows(command.steps, config.loader.accumulation, peak);
  const double gigaflop = executed_flops(training.graph(), training.network().nodes()) * 1e-9 *
                          static_cast<double>(config.loader.accumulation);
  const LayerPage page{.network = config.model.name,
                       .where = where_of(config, world, training, command.steps),
                       .account = account,
                       .steps = command.steps,
                       .peak_gigaflops = gigaflops_in(peak, training.network().precision()),
                       .peak_gigabytes = peak.gigabytes_per_second,
                       .step_gigaflops = gigaflop * command.steps / account.total(),
                       .rows = rows};
  print_page(page, command.rows);
  if (const std::vector<std::string> keys = left_out_keys(config); !keys.empty())
    print_fitted(fmt::format("keys that the profiled steps leave out: {}", fmt::join(keys, ", ")));
  if (!file.empty()) {
    write_atomically(file, layer_page(page));
    print_fitted("the page is in " + file);
  }
  if (!command.trace.empty()) {
    training.timeline()->write_chrome_trace(command.trace, 0);
    print_fitted("the trace is in " + command.trace);
    if (const std::size_t dropped = training.timeline()->dropped(); dropped > 0)
      log::warning("{} lacks {} because its buffer is full: profile fewer steps (--steps)", command.trace,
                   counted(dropped, "event"));
  }
  return exit_code::done;
}

void profile_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  add_trace_flag(app, command);
  app.add_option("--steps", command.steps, "Steps to average over, at most 1000 (default: 10)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  app.add_option("--html", command.own<HtmlFlag>().file,
                 "Also write the profile, with all layers, to this file as an HTML page")
      ->type_name("FILE");
  app.add_option("--rows", command.rows, "Rows of the layer table (default: 20); 0 prints all")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N");
}

}  // namespace

extern const CommandEntry profile_command = {
    .name = "profile",
    .description = "Train a few steps and print where their time goes, layer by layer",
    .example = "lockstep profile fashion_mnist_resnet20 --steps 20 --trace trace.json",
    .flags = profile_flags,
    .in_world = in_job<ProfileRun, profile>};

}  // namespace lockstep
