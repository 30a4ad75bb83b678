// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/file_text.h"
#include "core/system/processor_name.h"
#include "core/system/terminal.h"
#include "core/text/text.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/devices/cores.h"
#include "launch/program/mpirun.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/tune/bench.h"
#include "launch/program/tune/dimensions.h"
#include "launch/program/tune/journal.h"
#include "launch/program/tune/report.h"
#include "launch/program/tune/search.h"
#include "launch/program/version.h"
#include "launch/train/hold.h"

namespace lockstep {
namespace {

struct TuneFlags {
  double minutes = 2;
  std::int64_t steps = 0;  // budget in steps instead of minutes; 0: minutes
  bool fresh = false;
  bool allow_inexact = false;
  std::string out;  // empty: run.dir
};

// Outlives an error of this rank: see run_or_abort().
struct TuneRun {
  std::unique_ptr<Communicator> communicator;
  Config config;
  std::optional<RunLock> lock;         // on rank 0 only
  std::optional<TuneJournal> journal;  // on rank 0 only
  std::optional<TuneBench> bench;
  TuneFacts facts;
};

// Uses say(), because fmt::print throws on a closed pipe.
void say_line(const std::string& text) { say(fitted(text, find_terminal()) + '\n'); }

// Includes a hash of the executable: another build must not reuse measurements.
std::string program_identity() {
  const std::string program = file_text("/proc/self/exe");
  return fmt::format("{} {:016x}", kVersion, XXH3_64bits(program.data(), program.size()));
}

TuneFacts facts_of(const World& world, const TuneBench& bench) {
  return {.command = job_command(),
          .date = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr))),
          .program = program_identity(),
          .host = world.host(),
          .processor = processor_name(),
          .cores = machine_cores(),
          .ranks = world.size(),
          .nodes = world.nodes(),
          .device = to_string(bench.facts().device),
          .backend = bench.facts().backend,
          .global_batch = bench.facts().global_batch};
}

std::filesystem::path out_folder(const TuneRun& run, const TuneFlags& flags) {
  return flags.out.empty() ? run.config.run_dir : flags.out;
}

// Checks before the search that the results can be written.
void prepare_folder(const std::filesystem::path& folder) {
  create_folder(folder);
  std::error_code error;
  const std::filesystem::path tuned = folder / "tuned.toml";
  if (std::filesystem::exists(tuned, error) && !file_text(tuned).starts_with(kTunedMark)) {
    throw ConfigError(fmt::format(
        "{} exists and was not written by lockstep tune; move it, or choose another folder with --out",
        tuned.string()));
  }
  const AtomicFile writable(folder / "tuned.json");  // tests write access; removed uncommitted
}

// Prints a line for each measurement, and on a terminal a bar below them.
class TuneProgress {
 public:
  TuneProgress(bool speaks, double total, TuneUnit unit)
      : speaks_(speaks), terminal_(find_terminal()), total_(total), unit_(unit) {}

  void measuring(const TuneSettings& settings, double spent) {
    settings_ = settings;
    spent_ = spent;
    draw(spent);
  }
  // seconds, steps: spent on the current measurement so far.
  void behind_turn(double seconds, double steps) {
    draw(spent_ + (unit_ == TuneUnit::seconds ? seconds : steps));
  }
  void measured(const TuneRequest& request, const TuneVisit& visit) {
    if (!speaks_) return;
    const TuneFigure figure = figure_of(ratios_of(visit));
    const std::string line =
        visit_line(request.settings, figure.pairs > 0 ? &figure : nullptr, visit.problem);
    say((terminal_.present ? kClearLine : "") +
        fitted((request.confirms ? "confirmation: " : "") + line, terminal_) + '\n');
  }

 private:
  void draw(double spent) const {
    if (!speaks_ || !terminal_.present) return;
    const double left = std::max(0.0, total_ - spent);
    say(kClearLine + bar_line({.start = "tuning",
                               .fraction = std::min(1.0, spent / total_),
                               .parts = {unit_ == TuneUnit::seconds ? duration(left) + " left"
                                                                    : fmt::format("{:.0f} steps left", left),
                                         describe(settings_)}},
                              terminal_.columns));
  }

  bool speaks_;
  Terminal terminal_;
  double total_;
  TuneUnit unit_;
  TuneSettings settings_;
  double spent_ = 0;
};

// Collective. Returns the journal's measurement of the request, or else measures it by `work` and appends it
// to the journal. Every rank returns that of rank 0.
TuneVisit kept_or_measured(TuneRun& run, const TuneRequest& request, const std::function<TuneVisit()>& work) {
  Communicator& communicator = *run.communicator;
  std::string text = "none";
  if (run.journal) {
    if (const std::optional<TuneVisit> kept = run.journal->take(request)) text = to_text(*kept);
  }
  text = broadcast_text(communicator, text, 0);
  if (text == "none") {
    const TuneVisit visit = work();
    run_agreed(communicator, [&] {
      if (run.journal) run.journal->append(request, visit);
    });
    text = broadcast_text(communicator, to_text(visit), 0);
  }
  return visit_from_text(text);
}

// Applies settings to the configuration, and checks them as a user's.
Config with_settings(const Config& config, const TuneSettings& settings, const Registry& registry) {
  Registry with_this = registry;
  with_this.presets = {{.name = "as configured", .text = to_toml(config, registry)}};
  std::vector<std::string> overrides;
  for (const auto& [key, value] : settings) overrides.push_back(fmt::format("{}={}", key, value));
  return load_config("as configured", overrides, with_this);
}

TuneSituation situation_of(const TuneRun& run, const TuneFlags& flags, const World& world) {
  const TuneBench::Facts& facts = run.bench->facts();
  const bool shared_out = run.config.threads == 0 && !run.config.reproducible;
  const int mine = shared_out ? facts.threads : choose_threads(0, world, *run.communicator).threads;
  // Equal on every rank, because all ranks must try the same settings.
  const auto least = [&](int value) { return std::ranges::min(gather_values(*run.communicator, value)); };
  const auto name_buckets = [&facts, ranks = world.size()](const std::array<double, 3>& bucket_mib) {
    GradientSettings settings;
    settings.bucket_mib = bucket_mib;
    const BucketOptions options = bucket_options(settings);
    std::string name;
    for (const Bucket& bucket : BucketPlan(facts.parameters, options.capacities(), ranks).buckets())
      name += fmt::format("{} ", bucket.end);
    return name;
  };
  return {.ranks = world.size(),
          .nodes = world.nodes(),
          .gpu = facts.device.kind != DeviceKind::cpu,
          .threads = least(facts.threads),
          .cores = least(mine),
          .allow_inexact = flags.allow_inexact,
          .buckets = name_buckets};
}

void open_journal(TuneRun& run, const TuneFlags& flags, const Registry& registry, bool first) {
  run_agreed(*run.communicator, [&] {
    if (!first) return;
    const TuneFacts& facts = run.facts;
    run.journal.emplace(
        std::filesystem::path(run.config.run_dir) / "tune.jsonl",
        TuneHeader{.config = to_toml(run.config, registry),
                   .program = facts.program,
                   .ranks = facts.ranks,
                   .nodes = facts.nodes,
                   .device = fmt::format("{}, {}, {}", facts.device, facts.processor, facts.backend)},
        flags.fresh);
  });
}

void say_what_comes(const TuneRun& run, const TuneFlags& flags, const BenchBlock& as_configured) {
  const TuneFacts& facts = run.facts;
  say_line(fmt::format("Lockstep {}: tuning {} on {}, {} on {}: {:.1f} ms per step as configured", kVersion,
                       run.config.model.name, facts.device, counted(facts.ranks, "rank"),
                       counted(facts.nodes, "node"), 1e3 * as_configured.step_seconds));
  if (facts.ranks == 1) say_line("one rank exchanges no gradients: only compute settings are tried");
  if (run.journal->measurements_found() > 0)
    say_line(fmt::format("reusing {} of {}", counted(run.journal->measurements_found(), "measurement"),
                         (std::filesystem::path(run.config.run_dir) / "tune.jsonl").string()));
  say_line(fmt::format("turns of {}, {}; the same command continues an interrupted run",
                       counted(facts.block_steps, "step"),
                       flags.steps > 0 ? fmt::format("{} steps in total", flags.steps)
                                       : fmt::format("{:.3g} minutes in total", flags.minutes)));
}

void write_tuned(const TuneRun& run, const TuneFlags& flags, const TuneOutcome& outcome,
                 const Registry& registry) {
  const std::filesystem::path folder = out_folder(run, flags);
  const Config winner = with_settings(run.config, outcome.winner, registry);
  say('\n' + tune_table(outcome, run.facts, find_terminal()) + '\n');
  say_line(fmt::format("{}: {}", outcome.winner.empty() ? "the default is kept" : describe(outcome.winner),
                       outcome.reason));
  write_atomically(folder / "tuned.toml", tuned_toml(winner, outcome, run.facts, registry));
  write_atomically(folder / "tuned.json", tune_evidence(outcome, run.facts));
  const std::optional<std::string> chart = bucket_chart(run.config, outcome, run.facts);
  if (chart) write_atomically(folder / "tuned.svg", *chart);
  say_line(fmt::format("the configuration is in {}; in the same folder, tuned.json has the measurements{}",
                       (folder / "tuned.toml").string(),
                       chart ? ", and tuned.svg step time over bucket size" : ""));
}

TuneOutcome search_settings(TuneRun& run, const TuneFlags& flags, World& world, const Registry& registry) {
  TuneBench& bench = *run.bench;
  const bool first = world.rank() == 0;
  TuneBudget budget{.unit = flags.steps > 0 ? TuneUnit::steps : TuneUnit::seconds,
                    .total = flags.steps > 0 ? static_cast<double>(flags.steps) : 60 * flags.minutes};
  // At most 1/part of a budget in steps; no limit for a budget in minutes.
  const auto at_most = [&](std::int64_t part) {
    return flags.steps > 0 ? flags.steps / part : std::numeric_limits<std::int64_t>::max();
  };
  const TuneVisit calibration = kept_or_measured(run, {}, [&] { return bench.calibrate(at_most(10)); });
  const BenchBlock as_configured = calibration.blocks.at(0);
  bench.set_turns(as_configured.step_seconds, at_most(100));
  run.facts.block_steps = bench.block_steps();
  const auto steps_of_pair = static_cast<double>(bench.steps_of_pair());
  budget.spent = budget.cost_of(calibration);
  budget.pair_cost =
      budget.unit == TuneUnit::steps ? steps_of_pair : steps_of_pair * as_configured.step_seconds;
  if (first) say_what_comes(run, flags, as_configured);

  TuneProgress progress(first, budget.total, budget.unit);
  double spent = budget.spent;
  const auto measure = [&](const TuneRequest& request) {
    progress.measuring(request.settings, spent);
    hold_in("tune");
    const TuneVisit visit = kept_or_measured(run, request, [&] {
      try {
        return bench.visit(with_settings(run.config, request.settings, registry), request.pairs,
                           [&](double seconds, double steps) { progress.behind_turn(seconds, steps); });
      } catch (const ConfigError& error) {  // settings that exclude each other
        return TuneVisit{.problem = error.what()};
      }
    });
    spent += budget.cost_of(visit);
    progress.measured(request, visit);
    return visit;
  };
  const TuneSituation situation = situation_of(run, flags, world);
  TuneOutcome outcome = TuneSearch(budget, measure).run(tune_stages(run.config, registry, situation));
  if (outcome.default_blocks.empty()) outcome.default_blocks = calibration.blocks;  // nothing was compared
  return outcome;
}

int tune(TuneRun& run, const Command& command, World& world) {
  const auto& flags = command.own<TuneFlags>();
  const bool first = world.rank() == 0;
  run.communicator = world.communicator();
  const std::optional<Config> config = agreed_config(*run.communicator, command);
  if (!config) return exit_code::done;
  run.config = *config;
  make_failed_writes_errors();
  require_same_flags(*run.communicator,
                     fmt::format("--minutes {} --steps {} --fresh {} --allow-inexact {} --out {}",
                                 flags.minutes, flags.steps, flags.fresh, flags.allow_inexact, flags.out));
  run_agreed(*run.communicator, [&] {
    if (!first) return;
    run.lock.emplace(run.config.run_dir);
    prepare_folder(out_folder(run, flags));
  });
  run.bench.emplace(world, *run.communicator, run.config, command.registry);
  run.facts = facts_of(world, *run.bench);
  open_journal(run, flags, command.registry, first);
  const TuneOutcome outcome = search_settings(run, flags, world, command.registry);
  run_agreed(*run.communicator, [&] {
    if (first) write_tuned(run, flags, outcome, command.registry);
  });
  return exit_code::done;
}

void tune_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  auto& flags = command.own<TuneFlags>();
  CLI::Option* minutes =
      app.add_option(
             "--minutes", flags.minutes,
             "Approximate time to measure, in minutes (default 2); the confirmation of the best settings may "
             "exceed it")
          ->check(number_between(0.01, 10000))
          ->type_name("M");
  app.add_option("--steps", flags.steps, "Budget in training steps, including warm-up, instead of minutes")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("N")
      ->excludes(minutes);
  app.add_flag("--fresh", flags.fresh, "Start over, and rename the file of earlier measurements");
  app.add_flag(
      "--allow-inexact", flags.allow_inexact,
      "Also try settings that change the result: codecs of gradients between nodes, and MPI's own sums");
  app.add_option("--out", flags.out, "Folder for tuned.toml, tuned.json and tuned.svg (default: run.dir)")
      ->type_name("FOLDER");
}

}  // namespace

extern const CommandEntry tune_command = {
    .name = "tune",
    .description = "Find the fastest settings on this machine, with the measurements",
    .example = "lockstep tune fashion_mnist_cnn --minutes 5 --ranks 2",
    .flags = tune_flags,
    .in_world = in_job<TuneRun, tune>};

}  // namespace lockstep
