// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/rank_memory.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/text/units.h"
#include "launch/observe/account/codec_advice.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/step_ends/cross_barrier.h"
#include "launch/train/step_ends/delayed_gradients.h"
#include "launch/train/step_ends/gossip.h"
#include "launch/train/step_ends/local_sgd.h"

namespace lockstep {
namespace {

std::string arena_note(const Network& network) {
  const MemoryPlan& memory = network.memory();
  std::string note = fmt::format("one arena, {:.2f} MiB of it workspace; {:.2f} MiB without sharing",
                                 in_mib(memory.workspace), in_mib(memory.activations_unshared));
  if (memory.activations != memory.activations_kept) {
    note += fmt::format(", {:.2f} MiB without recomputation {}", in_mib(memory.activations_kept),
                        described(network.recomputes()));
  }
  return note;
}

// Memory of the fp32 sums of gradients and statistics (train.reproducible, comm.sum_type).
std::size_t sums_need(const Config& config, const Registry& registry, int ranks, Device device,
                      const MemoryPlan& plan) {
  const auto elements = static_cast<std::int64_t>(plan.parameters / sizeof(float));
  const DType type = storage_type(config.network.precision);
  const std::int64_t half =
      type == DType::f32 ? 0 : static_cast<std::int64_t>(plan.weight_copies / size_of(type));
  const std::int64_t micro_batches = config.loader.accumulation;
  if (config.reproducible) {
    return MicroBatchSums::planned_bytes(elements, half, micro_batches) +
           StepStatistics::planned_bytes(plan, micro_batches);
  }
  if (half == 0) return 0;
  const SumType given = config.gradients.sum_type;
  std::size_t bytes = 0;
  if (sums_in_f32(given, type, micro_batches)) bytes += RunningSums::planned_bytes(elements);
  // For NCCL, one bucket: it is closed when full, and its last parameter may be large.
  if (!is_host_memory(device) && sums_in_f32(given, type, ranks)) {
    const std::size_t full = bucket_options(config, registry).middle_bytes / size_of(type);
    bytes += std::min(static_cast<std::size_t>(half), 2 * full) * sizeof(float);
  }
  return bytes;
}

}  // namespace

std::vector<MemoryPart> memory_parts(TrainingSetup& training, const Communicator& communicator) {
  const MemoryPlan& memory = training.network().memory();
  bool on_host = false;
  std::vector<MemoryPart> parts;
  const auto add = [&](const char* name, std::size_t bytes, std::string note) {
    if (bytes > 0)
      parts.push_back({.name = name, .bytes = bytes, .note = std::move(note), .on_host = on_host});
  };
  add("activations", memory.activations, arena_note(training.network()));
  add("parameters", memory.parameters, fmt::format("{} tensors", training.network().parameters().size()));
  add("copies", memory.weight_copies, "weights in half precision");
  add("frozen", memory.frozen, "of layers that are not trained: parameters, statistics, copies");
  add("statistics", memory.statistics, "of batch norm: in training, before the step, in evaluation");
  const StepStatistics* sums = training.step_statistics();
  GradientBuckets& buckets = training.buckets();
  const std::size_t in_sums = buckets.sum_bytes() + (sums == nullptr ? 0 : sums->memory_bytes());
  add("gradients", buckets.memory_bytes() - buckets.sum_bytes() - buckets.codec_bytes(), "the buckets");
  add("sums", in_sums,
      fmt::format("in fp32, of micro-batches and ranks: {}",
                  sums == nullptr ? "comm.sum_type" : "train.reproducible"));
  add("codecs", training.codec_bytes(),
      buckets.exchange().to_choose() == nullptr
          ? "packed and sent values, and state"
          : "estimated maximum of the codecs that comm.codec = auto may choose");
  add("optimizer", training.optimizer().state().size_bytes(),
      fmt::format("{}{}", fmt::join(training.optimizer().state_names(), ", "),
                  buckets.sharded() && communicator.size() > 1
                      ? fmt::format(": this rank's share, 1/{} (comm.exchange)", communicator.size())
                      : ""));
  add("average", training.average_bytes(), "of the parameters over the steps (train.ema_decay)");
  add("batches", training.device_batch_bytes(), "of this step and the next, for training and evaluation");
  add("dataset", training.train_set().on_device().size() + training.test_set().on_device().size(),
      "images that batches are gathered from");
  on_host = !is_host_memory(training.network().device());
  add("loaders", training.train_loader().memory_bytes() + training.test_loader().memory_bytes(),
      "slots of prefetched batches");
  add("dataset", training.train_set().memory_bytes() + training.test_set().memory_bytes(),
      "images and labels held in memory");
  add("staging", communicator.memory_bytes(), "messages to and from other ranks");
  return parts;
}

MemoryNeed planned_need(const Config& config, const Registry& registry, const World& world, Device device,
                        const MemoryPlan& plan, std::size_t batches) {
  const OptimizerKind& optimizer = optimizer_kind(config.optimizer.name, registry.optimizers);
  const bool delays = config.gradients.staleness > 0;
  const bool on_ring = config.trainer.topology == Topology::ring;
  const bool sharded = config.gradients.exchange == ExchangeForm::sharded;
  return {
      .activations = plan.activations,
      .parameters = plan.parameters + plan.weight_copies + plan.statistics + plan.frozen +
                    (config.gradients.cross_barrier ? CrossBarrier::planned_bytes(plan) : 0),
      .gradients =
          plan.gradients * (delays ? 2 : 1) + sums_need(config, registry, world.size(), device, plan),
      .optimizer =
          optimizer.state_bytes(plan.parameters) / static_cast<std::size_t>(sharded ? world.size() : 1) +
          (config.trainer.average_every > 1 ? LocalSgd::planned_bytes(plan.parameters) : 0) +
          (on_ring ? LocalSgd::planned_bytes(plan.parameters) + Gossip::planned_bytes(plan.parameters) : 0) +
          planned_average_need(config, plan) +
          (delays ? DelayedGradients::planned_bytes(plan.parameters) : 0),
      .codecs = planned_codec_need(config, registry, world, plan),
      .batches = batches};
}

std::size_t planned_codec_need(const Config& config, const Registry& registry, const World& world,
                               const MemoryPlan& plan) {
  const auto elements = static_cast<std::int64_t>(plan.parameters / sizeof(float));
  return planned_codec_bytes(bucket_options(config, registry), elements, world);
}

std::size_t planned_average_need(const Config& config, const MemoryPlan& plan) {
  return config.trainer.ema_decay > 0 ? WeightAverage::planned_bytes(plan.parameters) : 0;
}

}  // namespace lockstep
