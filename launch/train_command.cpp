// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/error.h"
#include "launch/agreed_config.h"
#include "launch/agreement.h"
#include "launch/commands.h"
#include "launch/digest.h"
#include "launch/job_end.h"
#include "launch/replicas.h"
#include "launch/run_folder.h"
#include "launch/terminal.h"
#include "launch/trainer.h"
#include "launch/training.h"
#include "launch/version.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("{}: cannot be written", path));
}

std::string header_line(const Config& config, const World& world, Training& training) {
  return fmt::format("Lockstep {}: {} on {} ({} thread{} per rank), {} rank{} x batch {} x accumulation {}",
                     kVersion, config.model.name, to_string(training.network().device()), training.threads(),
                     training.threads() == 1 ? "" : "s", world.size(), world.size() == 1 ? "" : "s",
                     config.train.batch, config.train.accumulation);
}

void write_results(const Command& command, Training& training, const std::string& state) {
  if (!command.export_.empty()) StateSnapshot(training.network()).save(command.export_);
  if (!command.digest.empty()) write_text(command.digest, state + "\n");
  if (!command.trace.empty()) training.timeline()->write_chrome_trace(command.trace, 0);
}

// What outlives an error of this rank: see run_or_abort.
struct TrainRun {
  std::unique_ptr<Communicator> communicator;
  Config config;
  std::optional<RunLock> lock;  // rank 0's
  std::optional<Training> training;
  std::optional<Report> report;
  std::optional<Trainer> trainer;
};

void build(TrainRun& run, const Command& command, World& world) {
  const Config& config = run.config;
  Communicator& communicator = *run.communicator;
  Training& training = run.training.emplace(
      config, world, communicator, Training::Options{.init = command.init, .trace = !command.trace.empty()});
  const std::filesystem::path directory = config.run.dir;
  const Terminal terminal = find_terminal();
  run_agreed(communicator, [&] {
    run.report.emplace(ReportOptions{.speaks = world.rank() == 0,
                                     .terminal = terminal.present,
                                     .columns = terminal.columns,
                                     .directory = directory,
                                     .epochs = config.train.epochs,
                                     .steps_per_epoch = training.train_loader().steps_in_epoch(0),
                                     .global_batch = training.train_loader().global_batch()});
  });
  run.trainer.emplace(training.parts(), training.schedule(),
                      TrainerOptions{.accumulation = config.train.accumulation,
                                     .epochs = config.train.epochs,
                                     .max_steps = config.train.steps,
                                     .record_steps = config.train.cuda_graph,
                                     .last_good = directory / "last_good.safetensors"});
}

int train(TrainRun& run, const Command& command, World& world) {
  const bool first = world.rank() == 0;
  run.communicator = world.communicator();
  const std::optional<Config> config = agreed_config(*run.communicator, command);
  if (!config) return exit_code::done;
  run.config = *config;
  run_agreed(*run.communicator, [&] {
    if (first) run.lock.emplace(config->run.dir);
  });

  build(run, command, world);
  run.report->header(header_line(run.config, world, *run.training));
  run.trainer->fit(*run.report);
  std::string state;
  run_agreed(*run.communicator, [&] {
    state = digest(run.training->network(), run.training->optimizer());
    if (first) write_results(command, *run.training, state);
  });
  require_same_state(*run.communicator, state);
  return exit_code::done;
}

}  // namespace

int run_train(const Command& command, World& world) {
  TrainRun run;
  return run_or_abort(world, [&] { return train(run, command, world); });
}

}  // namespace lockstep
