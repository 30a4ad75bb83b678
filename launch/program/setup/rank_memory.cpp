// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/rank_memory.h"

#include <fmt/ranges.h>

#include "core/text/units.h"
#include "launch/program/setup/training_setup.h"

namespace lockstep {
namespace {

std::string arena_note(const MemoryPlan& memory) {
  std::string note = fmt::format("one arena, {:.2f} MiB of it workspace; {:.2f} MiB without sharing",
                                 in_mib(memory.workspace), in_mib(memory.activations_unshared));
  if (memory.activations != memory.activations_kept) {
    note += fmt::format(", {:.2f} MiB without recomputation", in_mib(memory.activations_kept));
  }
  return note;
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
  add("activations", memory.activations, arena_note(memory));
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
      fmt::format("{}", fmt::join(training.optimizer().state_names(), ", ")));
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

}  // namespace lockstep
