// SPDX-License-Identifier: Apache-2.0
#include "launch/engine_options.h"

#include "comm/codecs/codec.h"
#include "core/error.h"
#include "data/device_batches.h"

namespace lockstep {
namespace {

// What adds momentum in the optimizer's place does it as SGD does.
void require_momentum(const ExchangeChoice& choice, const OptimizerSettings& optimizer) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum || optimizer.name == "sgd") return;
  throw ConfigError(
      fmt::format("comm.codec = \"{}\" adds SGD's momentum to gradients before it compresses them, which "
                  "optimizer.name = \"{}\" has no use for: set optimizer.name = \"sgd\", or another codec",
                  choice.kind->name, optimizer.name));
}

}  // namespace

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
  require_momentum(options.exchange, config.optimizer);
  for (const CodecRule& rule : options.codecs.rules) require_momentum(rule.choice, config.optimizer);
  options.momentum = {.momentum = config.optimizer.momentum, .nesterov = config.optimizer.nesterov};
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
