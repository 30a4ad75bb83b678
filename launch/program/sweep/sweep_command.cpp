// SPDX-License-Identifier: Apache-2.0
//
// lockstep sweep: searches for the best settings by many trainings.
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "comm/job/launcher.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/system/job_signals.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/commands/commands.h"
#include "launch/program/own_command.h"
#include "launch/program/sweep/coordinates.h"
#include "launch/program/sweep/jobs/slots.h"
#include "launch/program/sweep/plan.h"
#include "launch/program/sweep/report.h"
#include "launch/program/sweep/sweep.h"

namespace lockstep {
namespace {

struct SweepFlags {
  std::string file;
  bool json = false;
  bool print = false;
};

// Each job starts its own World, so this process must not be a rank of a launcher.
void require_no_launcher() {
  const Launch launch = find_launch(&std::getenv);
  if (launch.launcher == Launcher::none || (launch.launcher == Launcher::srun && launch.size == 1)) return;
  throw UsageError(
      "lockstep sweep starts its trainings itself; start it once, without a launcher, and set the number "
      "of ranks of each training in the file ([sweep] ranks = N)");
}

void write_outcome(const Sweep& sweep, const SweepPlan& plan, const SweepOutcome& outcome,
                   const Registry& registry) {
  const std::filesystem::path folder = plan.dir;
  write_atomically(folder / "trials.csv", sweep_csv(outcome, plan.space));
  write_atomically(folder / "sweep.svg", parallel_coordinates(outcome, plan.space));
  if (const SweepRow* best = outcome.best()) {
    write_atomically(folder / "best.toml",
                     best_toml(*best, sweep.config_of(best->trial), registry, plan.ranks));
    sweep.finish(best->trial);
  }
}

// A command is never wrapped, so that it can be pasted.
void say_with_command(const std::string& text, const std::vector<std::string>& words) {
  say(fitted(text, find_terminal()) + '\n' + printable(shell_command(words)) + '\n');
}

void tell_outcome(const Sweep& sweep, const SweepPlan& plan, const SweepOutcome& outcome,
                  const SweepFlags& flags) {
  if (flags.json) return say(sweep_json(outcome, plan.dir) + '\n');
  say('\n' + sweep_table(outcome, find_terminal()) + '\n');
  const SweepRow* const best = outcome.best();
  if (best == nullptr) return;
  const std::string config = (std::filesystem::path(plan.dir) / "best.toml").string();
  std::vector<std::string> words = {own_arguments().front(), "train", config};
  if (plan.ranks > 1) words.insert(words.begin() + 2, {"--ranks", std::to_string(plan.ranks)});
  say_with_command(
      fmt::format("the best is trial {}: its configuration is in {}, its network in {}; trials.csv and "
                  "sweep.svg in the folder of the sweep show all trials. To train it:",
                  best->trial, config, sweep.folder_of(best->trial).string()),
      words);
}

int run_sweep(const Command& command) {
  const auto& flags = command.own<SweepFlags>();
  require_no_launcher();
  make_failed_writes_errors();
  const SweepPlan plan = read_sweep(flags.file, command.registry);
  const SweepSlots slots = deal_slots(plan, sweep_resources());
  if (flags.print) {
    say(sweep_trials(plan, slots));
    return exit_code::done;
  }
  Sweep sweep(plan, slots, command.registry, !flags.json);
  if (const int signal = sweep.run(); signal != 0) {
    const std::string what = fmt::format(
        "{}: the sweep stopped, after its trainings saved checkpoints where they could", signal_name(signal));
    if (flags.json) throw Error(exit_code::resumable, what + "; repeat the command to resume");
    say_with_command(what + ". To resume:", own_arguments());
    return exit_code::resumable;
  }
  const SweepOutcome outcome = sweep.outcome();
  write_outcome(sweep, plan, outcome, command.registry);
  tell_outcome(sweep, plan, outcome, flags);
  if (outcome.best() != nullptr) return exit_code::done;
  const SweepRow* const failure = outcome.failure();
  throw Error(exit_code::failed, failure == nullptr
                                     ? "no trial was trained to its end"
                                     : fmt::format("no trial was trained to its end; trial {} failed: {}",
                                                   failure->trial, failure->problem));
}

void sweep_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<SweepFlags>();
  app.add_option(
         "FILE", flags.file,
         "TOML file. [sweep] has the keys config (a preset or a file), set, method (grid, random, halving), "
         "objective (accuracy, samples_per_second, pareto), jobs, ranks, trials, epochs, min_epochs, "
         "eta, seed and dir; [keys] has a list of values or a range for each key to search")
      ->required();
  app.add_flag("--print", flags.print, "Print the trials without training them");
  app.add_flag("--json", flags.json, "Print only one JSON object, at the end");
}

}  // namespace

extern const CommandEntry sweep_command = {
    .name = "sweep",
    .description = "Search over settings with many trainings at once",
    .example =
        "lockstep sweep sweep.toml, where sweep.toml is\n"
        "  [sweep]\n"
        "  config = \"fashion_mnist_cnn\"\n"
        "  method = \"halving\"\n"
        "  trials = 20\n"
        "  epochs = 9\n"
        "  [keys]\n"
        "  optimizer.learning_rate = { min = 0.001, max = 1.0, scale = \"log\" }\n"
        "  train.batch = [32, 64, 128]",
    .flags = sweep_flags,
    .alone = run_sweep};

}  // namespace lockstep
