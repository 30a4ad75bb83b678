// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/train_job.h"

#include <algorithm>
#include <filesystem>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/tensor/buffer.h"
#include "data/sets/preloaded.h"
#include "launch/program/devices/cores.h"
#include "launch/program/setup/engine_options.h"
#include "launch/train/hold.h"
#include "launch/train/trials/thread_trial.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

// The kernels of the saved training; empty where none is resumed, or its device or kernels.choose differ.
std::string saved_kernels(const TrainJob& job) {
  if (!job.saved) return {};
  const auto on_gpu = [](const std::string& value) { return value == "\"cuda\"" || value == "\"idle\""; };
  for (const KeyDifference& each : differences(job.saved->manifest.config, to_toml(job.config))) {
    if (each.key == "kernels.choose") return {};
    if (each.key == "world.device" && !(on_gpu(each.value) && on_gpu(each.other))) return {};
  }
  return job.saved->manifest.kernels;
}

// The line of an epoch that train.steps cut short is kept if no step remains; else the epoch continues and
// gets a new line.
bool keeps_partial_line(const TrainJob& job, const TrainingLength& length) {
  return job.saved->manifest.partial_line && job.saved->manifest.steps >= length.steps;
}

// The setting that gives the layer of a network its `channels`; nullopt if there is none, as for the classes.
std::optional<WidthSetting> width_setting(const NetworkChoice& choice, const std::string& layer,
                                          std::int64_t channels) {
  const auto spec = std::ranges::find(choice.layers, layer, &LayerSpec::name);
  if (spec != choice.layers.end()) {
    for (const char* field : {"channels", "features"})
      if (spec->given(field)) return WidthSetting{fmt::format("model.layer.{}.{}", layer, field), channels};
    return std::nullopt;
  }
  const std::vector<NetworkEntry>& networks = network_table();
  const auto entry = std::ranges::find(networks, choice.name, &NetworkEntry::name);
  if (entry == networks.end()) return std::nullopt;
  for (const NumberOption& option : entry->options) {
    const auto width = static_cast<std::int64_t>(choice.own.of(entry->name, option));
    // The channels of deeper layers are multiples of the width.
    if (option.name == std::string_view("width") && channels % width == 0)
      return WidthSetting{fmt::format("model.{}.width", entry->name), width};
  }
  return std::nullopt;
}

// For a loader that keeps no images: true if data.loader = "preload" would save decoding, reading or
// computing them again, and they fit in a quarter of the free memory. False for images that are decoded with
// data.loader = "auto", which would have kept them.
bool may_keep(const Dataset& set, const TrainingLength& length, LoaderMode mode) {
  if (set.decodes() && mode == LoaderMode::automatic) return false;
  const auto bytes = static_cast<std::size_t>(set.size() * set.image_shape().bytes());
  const bool in_memory = !set.decodes() && set.memory_bytes() >= bytes;
  return length.epochs > 1 && !set.draws() && !in_memory &&
         PreloadMemory::bytes_of_place(set, 1) <= available_memory({}) / 4;
}

}  // namespace

std::optional<std::int64_t> saved_epochs(const TrainJob& job) {
  if (!job.saved || !job.saved->in_run_dir) return std::nullopt;
  return job.saved->manifest.epochs;
}

void build(TrainJob& job, const Command& command, World& world) {
  hold_in("plan");
  const Config& config = job.config;
  Communicator& communicator = *job.communicator;
  TrainingSetup& training =
      job.training.emplace(config, world, communicator,
                           TrainingSetup::Options{.init = job.saved ? "" : command.init,
                                                  .trace = !command.trace.empty() || config.profile.any(),
                                                  .kernels = saved_kernels(job),
                                                  .registry = command.registry});
  TrainerOptions options = trainer_options(config);
  options.last_good = std::filesystem::path(config.run_dir) / kLastGoodFile;
  // Only rank 0 reports the norm. GPUs of all ranks record the same steps.
  if (world.rank() != 0 && is_host_memory(training.network().device())) options.norm_every = 0;
  job.trainer.emplace(training.parts(), training.schedule(), options);
}

void begin_report(TrainJob& job, const World& world) {
  TrainingSetup& training = *job.training;
  const Terminal terminal = find_terminal();
  const TrainingLength length = training.length();
  run_agreed(*job.communicator, [&] {
    job.report.emplace(ReportOptions{.speaks = world.rank() == 0,
                                     .terminal = terminal.present,
                                     .columns = terminal.columns,
                                     .directory = job.config.run_dir,
                                     .epochs = length.epochs,
                                     .steps_per_epoch = training.train_loader().steps_in_epoch(0),
                                     .total_steps = length.steps,
                                     .global_batch = training.train_loader().global_batch(),
                                     .dropped_samples = training.train_loader().dropped_samples(),
                                     .repeated_samples = training.train_loader().repeated_samples(),
                                     .last_batch_samples = training.train_loader().last_batch_samples(),
                                     .goes_on_after = saved_epochs(job),
                                     .partial_line = job.saved && keeps_partial_line(job, length),
                                     .goes_on_after_step = job.saved ? job.saved->manifest.steps : 0});
  });
}

IdleContext idle_context(TrainJob& job, const World& world, const DeviceMonitor* monitor,
                         const std::optional<Attainable>& attainable) {
  const Config& config = job.config;
  TrainingSetup& training = *job.training;
  return {.on_gpu = training.network().device().kind == DeviceKind::cuda,
          .records_steps = config.trainer.record_steps,
          .times_collectives = config.device_communicator.kernel_times,
          .halves_are_fast = training.halves_are_fast(),
          .ranks = world.size(),
          .local_ranks = world.local_size(),
          .threads = training.threads(),
          .cores = training.node_cores(),
          .machine_cores = machine_cores(),
          .batch = config.loader.batch,
          .most_batch = training.train_set().size() / world.size() / config.loader.accumulation,
          .accumulation = config.loader.accumulation,
          .decodes = training.train_set().decodes(),
          .draws = training.train_set().draws(),
          .reads_files = !training.train_set().verified(),  // verified: in memory, or computed
          .may_keep = may_keep(training.train_set(), training.length(), config.loader_mode),
          .preloads = training.keeps_images(),
          .loader_threads = config.loader.threads,
          .metrics_every = config.trainer.evaluate_every,
          .log_every = config.log_every,
          .epoch_steps = training.train_loader().steps_in_epoch(0),
          .checkpoint_every = config.checkpoints.every,
          .checkpoint_minutes = config.checkpoints.minutes,
          .may_time_kernels = config.kernels.choose != "time" && !config.reproducible,
          .roof = attainable ? roof_of(training.graph(), training.network(), attainable->gigaflops) : nullptr,
          .room = [&training, &world](std::int64_t batch) { return training.room_for(batch, world); },
          .width = [&choice = config.model](
                       const std::string& layer,
                       std::int64_t channels) { return width_setting(choice, layer, channels); },
          .slowed = [monitor] { return monitor != nullptr ? monitor->slowed() : std::nullopt; }};
}

void choose_threads_by_trial(TrainJob& job, const Command& command) {
  TrainingSetup& training = *job.training;
  const bool on_cpu = training.network().device().kind == DeviceKind::cpu;
  if (!on_cpu || job.config.threads != 0 || job.config.reproducible) return;
  const bool excludes = !command.trace.empty() || !training.buckets().exchange().state().empty() ||
                        job.config.trainer.topology == Topology::ring;
  if (first_rank_where(job.communicator->host(), excludes) >= 0) return;  // one rank may trace alone
  if (!sparing_is_open(*job.communicator, training.threads(), training.length().steps)) return;
  const int threads = training.threads();
  const ThreadTrial trial = try_sparing_a_core(*job.trainer, backend_for({}), *job.communicator, threads);
  training.set_threads(trial.threads);
  log::info("{}", describe(trial, threads));
}

}  // namespace lockstep
