// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/timeline.h"
#include "launch/observe/run_files/metric_lines.h"
#include "launch/observe/run_files/report_json.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/network/export_facts.h"
#include "launch/program/resume/resume.h"
#include "launch/program/resume/training_keeper.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/trainer.h"

namespace lockstep {
namespace {

struct EvalFlags {
  ResumeFlags resume{.from = {}, .evaluates = true};
  bool json = false;
};

// Objects that outlive an error of this rank: see run_or_abort.
struct EvalRun {
  std::unique_ptr<Communicator> communicator;
  std::optional<TrainingSetup> training;
  std::optional<Trainer> trainer;
  std::optional<SavedTraining> saved;
};

std::string to_line(const Evaluation& evaluation, double seconds) {
  std::vector<std::string> parts = {
      fmt::format("test loss {:.4f}", evaluation.loss),
      fmt::format("test accuracy {:.2f} % of {} samples", 100 * evaluation.accuracy, evaluation.samples)};
  if (evaluation.metrics) add_metrics(*evaluation.metrics, parts);
  parts.push_back(per_second(static_cast<double>(evaluation.samples) / seconds, "samples"));
  return fmt::format("{}", fmt::join(parts, "  "));
}

// A loss that is not finite becomes null.
std::string to_json(const Evaluation& evaluation, double seconds) {
  nlohmann::ordered_json line{{"test_loss", evaluation.loss},
                              {"test_accuracy", evaluation.accuracy},
                              {"samples", evaluation.samples},
                              {"seconds", seconds}};
  if (evaluation.metrics) add_metrics(*evaluation.metrics, line);
  return line.dump();
}

// "KEY: file X, configuration Y" for each difference between the facts of a file and of a configuration that
// may change an evaluation.
std::vector<std::string> differences_of(const ExportFacts& file, const ExportFacts& configured) {
  std::vector<std::string> found;
  const auto compare = [&](const std::string& what, const std::string& in_file,
                           const std::string& in_config) {
    if (in_file != in_config)
      found.push_back(fmt::format("{}: file {}, configuration {}", what, in_file, in_config));
  };
  const std::set<std::string> of_training = {"model.dropout", "model.sync_batch_norm",
                                             "model.zero_init_residual"};
  for (const std::string& setting : file.settings) {
    const std::size_t end = setting.find('=') + 1;
    if (of_training.contains(setting.substr(0, end - 1))) continue;
    const auto other = std::ranges::find_if(configured.settings, [&](const std::string& each) {
      return each.starts_with(setting.substr(0, end));
    });
    if (other != configured.settings.end())
      compare(setting.substr(0, end - 1), setting.substr(end), other->substr(end));
  }
  const auto sides = [](const ImageShape& image) {
    return fmt::format("{} x {} x {}", image.height, image.width, image.channels);
  };
  compare("image", sides(file.image), sides(configured.image));
  const auto [theirs, ours] = std::ranges::mismatch(file.classes, configured.classes);
  if (theirs != file.classes.end() && ours != configured.classes.end())
    compare(fmt::format("class {}", theirs - file.classes.begin()), *theirs, *ours);
  return found;
}

// Lockstep's exports contain their settings; files of other programs do not.
void warn_of_other_settings(const std::string& path, const ExportFacts& configured) {
  try {
    const std::optional<ExportFacts> file = read_export_facts(path);
    if (!file) return;
    const std::vector<std::string> found = differences_of(*file, configured);
    if (!found.empty())
      log::warning("{} was trained with other settings, so the evaluation may be wrong: {}", path,
                   fmt::join(found, "; "));
  } catch (const Error& error) {
    log::warning("the settings of the network cannot be compared: {}", error.what());
  }
}

// Returns nullopt if the command only prints the configuration. With --resume, sets run.saved and takes the
// values that the saved training measured ("auto"). Collective.
std::optional<Config> eval_config(EvalRun& run, Command command) {
  Communicator& communicator = *run.communicator;
  const auto& flags = command.own<EvalFlags>();
  const bool resumes = !flags.resume.from.empty();
  const AgreedConfigOptions options{.finds_batch = resumes, .finds_precision = resumes};
  std::optional<Config> config = agreed_config(communicator, command, options);
  if (!config) return std::nullopt;
  require_same_flags(communicator, to_text(flags.resume));
  if (command.init.empty() != resumes)
    throw_agreed(
        UsageError("lockstep eval needs exactly one of --init FILE, for an export, and --resume FOLDER, for "
                   "a checkpoint"));
  if (!resumes) return config;
  if (config->is_incomplete()) {
    for (const std::string& each : saved_settings(communicator, *config, flags.resume, command.registry))
      command.overrides.push_back(each);
    config = agreed_config(communicator, command, options);
  }
  run.saved = find_saved(communicator, *config, flags.resume, command.registry);
  if (!run.saved)
    throw_agreed(UsageError(fmt::format(
        "--resume {}: there is no checkpoint to evaluate; give its folder, or set run.dir if this is auto",
        flags.resume.from)));
  if (config->is_incomplete()) agreed_config(communicator, command);  // throws
  return config;
}

int evaluate(EvalRun& run, const Command& command, World& world) {
  run.communicator = world.communicator();
  Communicator& communicator = *run.communicator;
  const std::optional<Config> agreed = eval_config(run, command);
  if (!agreed) return exit_code::done;
  Config config = *agreed;
  config.loader_mode = LoaderMode::stream;     // test samples are read once, training samples never
  config.model.reset_head = ResetHead::never;  // evaluation uses the saved head
  const auto& flags = command.own<EvalFlags>();
  // No steps are taken, and all ranks have the same parameters: the mean, where ranks trained apart.
  config.loader.accumulation = 1;
  config.trainer.average_every = 0;
  config.trainer.topology = Topology::all;
  config.gradients.staleness = 0;
  config.loader.tail = Tail::exact;  // accepts any number of training samples
  TrainingSetup& training = run.training.emplace(
      config, world, communicator,
      TrainingSetup::Options{.init = command.init, .registry = command.registry, .trains = false});
  Trainer& trainer = run.trainer.emplace(training.parts(), training.schedule(), trainer_options(config));
  if (!command.init.empty() && world.rank() == 0)
    warn_of_other_settings(command.init, export_facts(config, training.train_set(), command.registry));
  if (run.saved) restore_for_evaluation(*run.saved, flags.resume, communicator.host(), training, trainer);
  std::optional<ProgressMeter> meter;
  if (world.rank() == 0 && !flags.json) meter.emplace("evaluating", "batches", find_terminal());
  const std::int64_t begin = now_ns();
  const Evaluation evaluation = trainer.evaluate([&](std::int64_t batch, std::int64_t batches) {
    if (meter) meter->show(batch, batches);
  });
  const double seconds = seconds_between(begin, now_ns());
  meter.reset();
  if (world.rank() != 0) return exit_code::done;
  if (flags.json) {
    fmt::print("{}\n", to_json(evaluation, seconds));
  } else {
    print_fitted(to_line(evaluation, seconds));
  }
  return exit_code::done;
}

void eval_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  auto& flags = command.own<EvalFlags>();
  app.add_option("--init", command.init,
                 "The trained network: a safetensors file (PyTorch's names and layouts)")
      ->type_name("FILE");
  CLI::Option* from =
      app.add_option(
             "--resume", flags.resume.from,
             "The trained network: the newest checkpoint of run.dir (auto), a checkpoint or a run's folder")
          ->type_name("auto|FOLDER");
  app.add_option("--resume-with", flags.resume.with,
                 "Accept that this key differs from the saved configuration; repeatable")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->needs(from);
  app.add_flag("--json", flags.json, "Print a JSON object");
}

}  // namespace

extern const CommandEntry eval_command = {
    .name = "eval",
    .description = "Evaluate a trained network on the test set",
    .example =
        "lockstep eval fashion_mnist_cnn --init own.safetensors --set run.metrics=f1\n"
        "lockstep eval runs/mine/config.toml --resume runs/mine --ranks 2",
    .flags = eval_flags,
    .in_world = in_job<EvalRun, evaluate>};

}  // namespace lockstep
