// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "comm/agreement.h"
#include "comm/exchanges/exchanges.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/system/terminal.h"
#include "core/text/text.h"
#include "core/text/units.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/plan/gpus/gpu_report.h"
#include "launch/program/plan/simulation.h"
#include "launch/program/setup/rank_memory.h"
#include "launch/program/setup/training_setup.h"

namespace lockstep {
namespace {

struct RankRow {
  char host[64] = {};
  std::int32_t node = 0;
  std::int32_t local_rank = 0;
  std::int32_t threads = 0;
  char device[16] = {};
};

void print_ranks(Communicator& communicator, const World& world, TrainingSetup& training) {
  RankRow mine{.node = world.node(), .local_rank = world.local_rank(), .threads = training.threads()};
  world.host().copy(mine.host, sizeof(mine.host) - 1);
  to_string(training.network().device()).copy(mine.device, sizeof(mine.device) - 1);
  const std::vector<RankRow> rows = gather_values(communicator, mine);
  if (world.rank() != 0) return;
  print_fitted(fmt::format("ranks\n  {:>4}  {:>4}  {:>5}  {:<8}  {:>7}  {}", "rank", "node", "local",
                           "device", "threads", "host"));
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const RankRow& row = rows[rank];
    print_fitted(fmt::format("  {:>4}  {:>4}  {:>5}  {:<8}  {:>7}  {}", rank, row.node, row.local_rank,
                             row.device, row.threads, row.host));
  }
}

void print_memory(TrainingSetup& training, const Communicator& communicator) {
  const Device device = training.network().device();
  const bool on_gpu = !is_host_memory(device);
  const std::vector<MemoryPart> parts = memory_parts(training, communicator);
  const auto print_parts = [&](const std::string& head, bool on_host) {
    print_fitted(head);
    const auto line = [](const std::string& name, std::size_t bytes, const std::string& note) {
      print_beside(fmt::format("  {:<12} {:>10.2f} MiB  ", name, in_mib(bytes)), note);
    };
    std::size_t total = 0;
    for (const MemoryPart& part : parts) {
      if (part.on_host != on_host) continue;
      line(part.name, part.bytes, part.note);
      total += part.bytes;
    }
    const std::optional<DeviceMemoryUse> use = on_host ? std::nullopt : device_memory_use(device);
    if (use) {
      line("libraries", use->libraries, "CUDA, cuDNN, cuBLASLt and NCCL, measured before the first step");
      total += use->libraries;
    }
    line("total", total, use ? "" : "without the memory of libraries");
    if (use) {
      line("context", use->at_start, "and other processes, when this process started");
      line("device", use->total, "memory of the device");
    }
  };
  print_parts(fmt::format("memory per rank{}", on_gpu ? fmt::format(", on {}", to_string(device)) : ""),
              false);
  if (on_gpu) print_parts("memory per rank, on the host", true);
}

// The setting by which ranks send something else than dense gradients in each step; empty if there is none.
std::string other_traffic(const Config& config) {
  if (config.gradients.codec != kDenseSum.name) return fmt::format("comm.codec = {}", config.gradients.codec);
  if (config.gradients.codec_for != kDenseSum.name)
    return fmt::format("comm.codec_for = {}", config.gradients.codec_for);
  if (config.trainer.average_every > 1)
    return fmt::format("train.average_every = {}", config.trainer.average_every);
  return config.trainer.topology == Topology::ring ? "comm.topology = ring" : "";
}

void print_buckets(TrainingSetup& training, const Config& config, int ranks) {
  const auto parameters = training.network().parameters();
  const auto buckets = training.buckets().buckets();
  print_fitted(fmt::format("buckets, in the order in which they are sent\n  {:>6}  {:>10}  {}", "bucket",
                           "KiB", "parameters"));
  const DType sent_type = training.buckets().sent_type();
  std::size_t total = 0, travels = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    total += bucket.bytes();
    travels += bucket.sent_bytes(sent_type);
    const std::string& first = parameters[bucket.first_parameter].name;
    const std::string& last = parameters[bucket.last_parameter - 1].name;
    print_beside(fmt::format("  {:>6}  {:>10.1f}  ", i, static_cast<double>(bucket.bytes()) / 1024.0),
                 first == last ? first : first + " .. " + last);
  }
  if (const std::string setting = other_traffic(config); !setting.empty()) {
    return print_fitted(
        fmt::format("bytes per step\n  {} in gradients; the bytes that ranks send depend on {}, and lockstep "
                    "train reports them",
                    total, setting));
  }
  if (training.buckets().sharded()) {
    // Reduce-scatter of gradients, all-gather of fp32 parameters.
    const double values = static_cast<double>(training.network().values().size_bytes());
    return print_fitted(
        fmt::format("bytes per step\n  {} in gradients, {:.0f} sent by each rank ((n - 1) / n of gradients "
                    "and of parameters, n = {})",
                    total, (static_cast<double>(travels) + values) * (ranks - 1) / ranks, ranks));
  }
  // All-reduce as reduce-scatter and all-gather: each rank sends 2 (n - 1) / n of the data.
  const double sent = static_cast<double>(travels) * 2.0 * (ranks - 1) / ranks;
  print_fitted(
      fmt::format("bytes per step\n  {} in gradients, {:.0f} sent by each rank (2 (n - 1) / n, n = {}){}",
                  total, sent, ranks, travels > total ? ", as fp32" : ""));
}

// json: file to write, too; may be empty.
template <typename Plan>
void print_report(const Plan& report, const std::string& json) {
  for (const std::string& line : to_lines(report)) print_fitted(line);
  if (!json.empty()) write_atomically(json, to_json(report));
}

struct PlanRun {
  std::unique_ptr<Communicator> communicator;
  std::optional<TrainingSetup> training;
};

void print_plan(TrainingSetup& training, const Config& config, const Communicator& communicator) {
  print_memory(training, communicator);
  print_buckets(training, config, communicator.size());
  BatchLoader& loader = training.train_loader();
  print_fitted(fmt::format("batches\n  {} samples, global batch {}, {} per epoch, {}",
                           training.train_set().size(), loader.global_batch(),
                           counted(loader.steps_in_epoch(0), "step"),
                           counted(config.trainer.epochs, "epoch")));
}

int plan(PlanRun& run, const Command& command, World& world) {
  run.communicator = world.communicator();
  Communicator& communicator = *run.communicator;
  const std::optional<Config> config = agreed_config(communicator, command);
  if (!config) return exit_code::done;
  const bool first = world.rank() == 0;
  const auto& flags = command.own<SimulationFlags>();
  require_same_flags(communicator, fmt::format("--gpu {} --ranks {}", flags.gpus, flags.ranks));
  const bool estimates = !flags.gpus.empty() && flags.ranks == 0;
  std::optional<PlanSimulation> simulation;  // on rank 0 only
  run_agreed(communicator, [&] {
    require_ranks(flags);
    const std::vector<const GpuFigures*> gpus = find_gpus(flags.gpus);
    if (first && estimates) print_report(plan_gpus(gpus, *config, command.registry, world), flags.json);
    if (first && flags.ranks > 0) simulation.emplace(flags, *config);
  });
  if (estimates) return exit_code::done;
  TrainingSetup& training = run.training.emplace(
      *config, world, communicator, TrainingSetup::Options{.registry = command.registry, .computes = false});
  print_ranks(communicator, world, training);
  if (first) print_plan(training, *config, communicator);
  run_agreed(communicator, [&] {
    if (simulation) print_report(simulation->report(training.network()), flags.json);
  });
  return exit_code::done;
}

void plan_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  add_simulation_flags(app, command);
}

}  // namespace

extern const CommandEntry plan_command = {
    .name = "plan",
    .description = "Print the memory and buckets of a training, or predict it on a cluster or a GPU",
    .example =
        "mpirun -np 4 --bind-to none lockstep plan fashion_mnist_resnet20\n"
        "lockstep plan own.toml --ranks 512 --nodes 64 --link 25GB/s,5us --device-step trace.json\n"
        "lockstep plan own.toml --ranks 512 --nodes 64 --gpu h100 --link 8x50GB/s --device-step 19.5ms\n"
        "lockstep plan own.toml --gpu all",
    .flags = plan_flags,
    .in_world = in_job<PlanRun, plan>};

}  // namespace lockstep
