// SPDX-License-Identifier: Apache-2.0
#include "launch/engine_options.h"

#include "data/device_batches.h"

namespace lockstep {

LoaderOptions loader_options(const Config& config, Device device) {
  LoaderOptions options = config.loader;
  options.seed = config.network.seed;
  options.device = device;
  options.kept = DeviceBatches::loader_keeps({.device = device, .micro_batches = config.loader.accumulation});
  options.slots = options.kept + 3;
  return options;
}

NetworkOptions network_options(const Config& config, Device device) {
  NetworkOptions options = config.network;
  options.device = device;
  return options;
}

BucketOptions bucket_options(const Config& config, const Registry& registry) {
  BucketOptions options = bucket_options(config.gradients, registry.exchanges);
  if (config.reproducible) options.micro_batches = config.loader.accumulation;
  return options;
}

LossScaleOptions loss_scale_options(const Config& config) {
  return config.network.precision == Precision::fp16 ? config.loss_scale : LossScaleOptions{};
}

TrainerOptions trainer_options(const Config& config) {
  TrainerOptions options = config.trainer;
  options.accumulation = config.loader.accumulation;
  return options;
}

}  // namespace lockstep
