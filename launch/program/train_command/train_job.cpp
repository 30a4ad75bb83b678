// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/train_job.h"

#include <filesystem>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "launch/program/devices/cores.h"
#include "launch/program/setup/engine_options.h"
#include "launch/train/hold.h"
#include "launch/train/trials/thread_trial.h"

namespace lockstep {
namespace {

// The kernels of the saved training; empty where none is resumed, or its device or kernels.choose differ.
std::string saved_kernels(const TrainJob& run) {
  if (!run.saved) return {};
  const auto on_gpu = [](const std::string& value) { return value == "\"cuda\"" || value == "\"idle\""; };
  for (const KeyDifference& each : differences(run.saved->manifest.config, to_toml(run.config))) {
    if (each.key == "kernels.choose") return {};
    if (each.key == "world.device" && !(on_gpu(each.value) && on_gpu(each.other))) return {};
  }
  return run.saved->manifest.kernels;
}

// The line of an epoch that train.steps cut short is kept if no step remains; else the epoch continues and
// gets a new line.
bool keeps_partial_line(const TrainJob& run, const TrainingLength& length) {
  return run.saved->manifest.partial_line && run.saved->manifest.steps >= length.steps;
}

}  // namespace

std::optional<std::int64_t> saved_epochs(const TrainJob& run) {
  if (!run.saved || !run.saved->in_run_dir) return std::nullopt;
  return run.saved->manifest.epochs;
}

void build(TrainJob& run, const Command& command, World& world) {
  hold_in("plan");
  const Config& config = run.config;
  Communicator& communicator = *run.communicator;
  TrainingSetup& training =
      run.training.emplace(config, world, communicator,
                           TrainingSetup::Options{.init = run.saved ? "" : command.init,
                                                  .trace = !command.trace.empty() || config.profile.any(),
                                                  .kernels = saved_kernels(run),
                                                  .registry = command.registry});
  const std::filesystem::path directory = config.run_dir;
  const Terminal terminal = find_terminal();
  const TrainingLength length = training.length();
  run_agreed(communicator, [&] {
    run.report.emplace(ReportOptions{.speaks = world.rank() == 0,
                                     .terminal = terminal.present,
                                     .columns = terminal.columns,
                                     .directory = directory,
                                     .epochs = length.epochs,
                                     .steps_per_epoch = training.train_loader().steps_in_epoch(0),
                                     .total_steps = length.steps,
                                     .global_batch = training.train_loader().global_batch(),
                                     .dropped_samples = training.train_loader().dropped_samples(),
                                     .repeated_samples = training.train_loader().repeated_samples(),
                                     .last_batch_samples = training.train_loader().last_batch_samples(),
                                     .goes_on_after = saved_epochs(run),
                                     .partial_line = run.saved && keeps_partial_line(run, length),
                                     .goes_on_after_step = run.saved ? run.saved->manifest.steps : 0});
  });
  TrainerOptions options = trainer_options(config);
  options.last_good = directory / "last_good.safetensors";
  run.trainer.emplace(training.parts(), training.schedule(), options);
}

IdleContext idle_context(TrainJob& run, const World& world, const DeviceMonitor* monitor,
                         const std::optional<Attainable>& attainable) {
  const Config& config = run.config;
  TrainingSetup& training = *run.training;
  return {.on_gpu = training.network().device().kind == DeviceKind::cuda,
          .records_steps = config.trainer.record_steps,
          .halves_are_fast = training.halves_are_fast(),
          .ranks = world.size(),
          .local_ranks = world.local_size(),
          .threads = training.threads(),
          .cores = training.node_cores(),
          .machine_cores = machine_cores(),
          .batch = config.loader.batch,
          .accumulation = config.loader.accumulation,
          .decodes = training.train_set().decodes(),
          .preloads = !training.told_of_data().empty(),
          .loader_threads = config.loader.threads,
          .metrics_every = config.trainer.evaluate_every,
          .log_every = config.log_every,
          .roof = attainable ? roof_of(training.graph(), training.network(), attainable->gigaflops) : nullptr,
          .room = [&training, &world](std::int64_t batch) { return training.room_for(batch, world); },
          .slowed = [monitor] { return monitor != nullptr ? monitor->slowed() : std::nullopt; }};
}

void choose_threads_by_trial(TrainJob& run, const Command& command) {
  TrainingSetup& training = *run.training;
  const bool on_cpu = training.network().device().kind == DeviceKind::cpu;
  if (!on_cpu || run.config.threads != 0 || run.config.reproducible || !command.trace.empty()) return;
  const bool remembers =
      !training.buckets().exchange().state().empty() || run.config.trainer.topology == Topology::ring;
  if (first_rank_where(run.communicator->host(), remembers) >= 0) return;
  if (!sparing_is_open(*run.communicator, training.threads(), training.length().steps)) return;
  const int threads = training.threads();
  const ThreadTrial trial = try_sparing_a_core(*run.trainer, backend_for({}), *run.communicator, threads);
  training.set_threads(trial.threads);
  log::info("{}", describe(trial, threads));
}

}  // namespace lockstep
