// SPDX-License-Identifier: Apache-2.0
#include "launch/engine_options.h"

#include <cmath>

#include "data/device_batches.h"
#include "launch/kernel_cache.h"

namespace lockstep {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

DatasetOptions dataset_options(const Config& config) {
  return {.format = config.data.format, .path = config.data.path};
}

VerifyOptions verify_options(const Config& config, Shard local, int threads) {
  return {.extent = config.data.verify, .shard = local, .threads = threads};
}

LoaderOptions loader_options(const Config& config, Device device) {
  const int kept =
      DeviceBatches::loader_keeps({.device = device, .micro_batches = config.train.accumulation});
  return {.batch = config.train.batch,
          .accumulation = config.train.accumulation,
          .tail = config.data.tail,
          .seed = static_cast<std::uint64_t>(config.train.seed),
          .threads = static_cast<int>(config.data.loader_threads),
          .kept = kept,
          .slots = kept + 3,
          .device = device};
}

NetworkOptions network_options(const Config& config, Device device) {
  NetworkOptions options{.device = device,
                         .precision = config.train.precision,
                         .seed = static_cast<std::uint64_t>(config.train.seed)};
  options.mean.assign(config.data.mean.begin(), config.data.mean.end());
  options.deviation.assign(config.data.deviation.begin(), config.data.deviation.end());
  options.augmentation = {.crop_padding = config.data.crop_padding,
                          .horizontal_flip = config.data.horizontal_flip};
  options.label_smoothing = static_cast<float>(config.train.label_smoothing);
  options.recompute = config.train.recompute ? Recompute::blocks : Recompute::nothing;
  return options;
}

KernelChoices kernel_choices(const Config& config) {
  const std::string& choose = config.kernels.choose;
  return KernelChoices(choose == "time" ? ChooseBy::time : ChooseBy::name, choose);
}

std::filesystem::path kernel_cache_folder(const Config& config) {
  const std::string& folder = config.kernels.cache;
  if (folder == "auto") return default_kernel_cache();
  return folder == "none" ? std::filesystem::path() : std::filesystem::path(folder);
}

BucketOptions bucket_options(const Config& config) {
  const auto bytes = [](double mib) { return static_cast<std::size_t>(std::llround(mib * kMiB)); };
  return {.first_bytes = bytes(config.comm.bucket_mib[0]),
          .middle_bytes = bytes(config.comm.bucket_mib[1]),
          .last_bytes = bytes(config.comm.bucket_mib[2]),
          .overlap = config.comm.overlap,
          .micro_batches = config.train.reproducible ? config.train.accumulation : 0};
}

DeviceCommunicatorOptions device_communicator_options(const Config& config, bool shared) {
  return {.max_ctas = static_cast<int>(config.comm.max_ctas),
          .register_memory = config.comm.register_buckets,
          .share_device = shared};
}

LossScaleOptions loss_scale_options(const Config& config) {
  if (config.train.precision != Precision::fp16) return {};
  return {.initial = static_cast<float>(config.train.loss_scale),
          .rule = {.interval = static_cast<std::int32_t>(config.train.loss_scale_interval)}};
}

Schedule schedule_of(const Config& config, std::int64_t total_steps) {
  const auto& wanted = config.schedule;
  const double steps_per_epoch = static_cast<double>(total_steps) / static_cast<double>(config.train.epochs);
  const auto steps = [&](double epochs) {
    return static_cast<std::int64_t>(std::llround(epochs * steps_per_epoch));
  };
  Schedule schedule{.kind = schedule_kind(wanted.name),
                    .base = config.optimizer.learning_rate,
                    .total_steps = total_steps,
                    .warmup_steps = steps(wanted.warmup_epochs),
                    .milestones = {},
                    .gamma = wanted.gamma,
                    .final_fraction = wanted.final_fraction};
  for (const double epoch : wanted.milestones) schedule.milestones.push_back(steps(epoch));
  return schedule;
}

}  // namespace lockstep
