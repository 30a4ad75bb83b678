// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/system/terminal.h"
#include "core/text/enum_words.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/find_batch/find_batch.h"
#include "launch/program/find_batch/report.h"
#include "launch/program/mpirun.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

struct FindBatchFlags {
  double seconds = 45;
  std::string scaling;  // empty: the rule for the optimizer
  bool accuracy = false;
  std::int64_t epochs = 1;
  bool json = false;
  std::string out;  // empty: run.dir
};

// A rate that already follows the batch is not scaled again.
RateScaling scaling_of(const FindBatchFlags& flags, const Config& config) {
  const RateScaling configured = config.schedule.scaling;
  if (configured == RateScaling::none)
    return flags.scaling.empty() ? scaling_for(config.optimizer.name)
                                 : value_of<RateScaling>(flags.scaling).value();
  if (!flags.scaling.empty() && flags.scaling != "none")
    throw_agreed(UsageError(fmt::format(
        "--scaling {}: allowed only with optimizer.scale_rate = \"none\", not \"{}\", with which the "
        "learning rate already follows the batch; remove one of them",
        flags.scaling, word_of(configured))));
  return RateScaling::none;
}

// Progress on rank 0's terminal.
class FindBatchProgress {
 public:
  FindBatchProgress(bool speaks, double seconds)
      : speaks_(speaks), terminal_(find_terminal()), all_(seconds) {}
  ~FindBatchProgress() {
    if (bar_drawn_) say(kClearLine);
  }

  FindBatchTeller teller() {
    return {.begins = [this](const std::string& what, double seconds) { begins(what, seconds); },
            .measured = [this](const BatchFigure& figure) { line(batch_line(figure)); }};
  }
  void begins(const std::string& what, double seconds) {
    if (!speaks_ || !terminal_.present) return;
    bar_drawn_ = true;
    say(kClearLine + bar_line({.start = "finding the batch",
                               .fraction = std::min(1.0, seconds / all_),
                               .parts = {duration(std::max(0.0, all_ - seconds)) + " left", what}},
                              terminal_.columns));
  }
  void line(const std::string& text) {
    if (speaks_) say((terminal_.present ? kClearLine : "") + fitted(text, terminal_) + '\n');
  }

 private:
  bool speaks_;
  Terminal terminal_;
  double all_;
  bool bar_drawn_ = false;
};

std::filesystem::path prepared_folder(const Config& config, const FindBatchFlags& flags) {
  const std::filesystem::path folder = flags.out.empty() ? config.run_dir : flags.out;
  create_folder(folder);
  const AtomicFile writable(folder / "found_batch.json");  // tests write access; never committed
  return folder;
}

std::string found_toml(Config config, const FoundBatch& found, const Registry& registry) {
  config.loader.batch = found.recommended.batch;
  config.loader.accumulation = found.recommended.accumulation;
  config.schedule.learning_rate = found.recommended.learning_rate;
  config.schedule.warmup_epochs = found.recommended.warmup_epochs;
  return fmt::format("# Written by lockstep find-batch: {}.\n{}", found.recommended.reason,
                     to_toml(config, registry));
}

// The measured batches. The first is the configured one or, if there is none that can be trained, the
// recommended one.
std::vector<std::int64_t> batches_to_train(const FoundBatch& found) {
  std::vector<std::int64_t> batches;
  for (const BatchFigure& each : found.figures)
    if (each.measured()) batches.push_back(each.batch);
  const bool trains = found.configured.figure_in(found.figures) != nullptr;
  const std::int64_t first = trains ? found.configured.batch : found.recommended.batch;
  std::stable_partition(batches.begin(), batches.end(), [&](std::int64_t batch) { return batch == first; });
  return batches;
}

struct Outcome {
  FoundBatch found;
  std::vector<BatchAccuracy> accuracies;
};

void write_and_tell(const Outcome& outcome, const Config& config, const Command& command, int ranks,
                    const std::filesystem::path& folder) {
  const auto& flags = command.own<FindBatchFlags>();
  const std::string json = batch_json(outcome.found, outcome.accuracies);
  write_atomically(folder / "found_batch.json", json);
  write_atomically(folder / "found_batch.svg",
                   batch_charts(outcome.found, outcome.accuracies, config.model.name));
  write_atomically(folder / "found_batch.toml", found_toml(config, outcome.found, command.registry));
  if (flags.json) return say(json);
  say('\n' + batch_table(outcome.found, outcome.accuracies) + '\n');
  for (const std::string& line : batch_verdict(outcome.found)) print_fitted(line);
  std::vector<std::string> words = recommended_training(outcome.found, command.config, command.overrides);
  if (!words.empty()) {
    words.insert(words.begin(), own_arguments().front());
    const std::string hint = remove_secrets(words);
    fmt::print("{}\n", command_of_ranks(ranks, words));
    if (!hint.empty()) print_fitted(hint);
  }
  print_fitted(fmt::format(
      "Wrote the configuration to {}, and the measurements to found_batch.json and found_batch.svg "
      "in the same folder.",
      (folder / "found_batch.toml").string()));
}

int find(std::unique_ptr<Communicator>& communicator, const Command& command, World& world) {
  const auto& flags = command.own<FindBatchFlags>();
  communicator = world.communicator();
  Communicator& control = *communicator;
  std::optional<Config> config = agreed_config(control, command, {.finds_batch = true});
  if (!config) return exit_code::done;
  require_same_flags(control, fmt::format("--seconds {} --accuracy {} --epochs {} --scaling {}",
                                          flags.seconds, flags.accuracy, flags.epochs, flags.scaling));
  const RateScaling scaling = scaling_of(flags, *config);
  const bool automatic = config->loader.batch == 0;
  if (automatic) {
    Command given = command;
    given.overrides.push_back(fmt::format("train.batch={}", kFirstBatch));
    config = agreed_config(control, given);
  }
  make_failed_writes_errors();
  const bool first = world.rank() == 0;
  std::filesystem::path folder;
  run_agreed(control, [&] {
    if (first) folder = prepared_folder(*config, flags);
  });
  Outcome outcome;
  {
    FindBatchProgress progress(first && !flags.json, flags.seconds);  // removes its bar before the results
    outcome.found =
        find_batch(world, control, *config, command.registry,
                   {.seconds = flags.seconds, .automatic = automatic, .scaling = scaling}, progress.teller());
    if (flags.accuracy) {
      outcome.accuracies = compare_accuracy(
          world, *config, command.registry, batches_to_train(outcome.found), outcome.found.configured,
          flags.epochs, [&](const std::string& what) { progress.line("training with " + what); });
    }
  }
  run_agreed(control, [&] {
    if (first) write_and_tell(outcome, *config, command, control.size(), folder);
  });
  return exit_code::done;
}

void find_batch_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  auto& flags = command.own<FindBatchFlags>();
  app.add_option("--seconds", flags.seconds, "Approximate time to measure, in seconds (default 45)")
      ->check(number_between(1, 100000))
      ->type_name("S");
  app.add_option(
         "--scaling", flags.scaling,
         "Rule that scales the learning rate with the samples per step (default: linear for sgd, sqrt for "
         "adamw and lars)")
      ->check(CLI::IsMember({"none", "linear", "sqrt"}))
      ->type_name("none|linear|sqrt");
  CLI::Option* accuracy = app.add_flag("--accuracy", flags.accuracy,
                                       "Also train with each measured batch, for equal epochs and for equal "
                                       "steps, and report the test accuracy");
  app.add_option("--epochs", flags.epochs, "Epochs of each training of --accuracy (default 1)")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->needs(accuracy);
  app.add_flag("--json", flags.json, "Print one JSON object and nothing else");
  app.add_option("--out", flags.out, "Folder for found_batch.toml, .json and .svg (default: run.dir)")
      ->type_name("FOLDER");
}

}  // namespace

extern const CommandEntry find_batch_command = {
    .name = "find-batch",
    .description = "Find the fastest batch on this machine, and the largest that fits",
    .example = "lockstep find-batch fashion_mnist_cnn --ranks 2",
    .flags = find_batch_flags,
    .in_world = in_job<std::unique_ptr<Communicator>, find>};

}  // namespace lockstep
