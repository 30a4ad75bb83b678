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

// Differences of parameters have the momentum of the steps that made them.
void require_no_momentum(const ExchangeChoice& choice, const Config& config) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum) return;
  throw ConfigError(
      fmt::format("train.average_every = {}: comm.codec = \"{}\" adds momentum to gradients, and what ranks "
                  "exchange are differences of parameters; set another codec, such as \"topk\"",
                  config.trainer.average_every, choice.kind->name));
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
  if (config.trainer.average_every > 1) {
    require_no_momentum(options.exchange, config);
    for (const CodecRule& rule : options.codecs.rules) require_no_momentum(rule.choice, config);
  }
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
  if (options.average_every == 1)
    options.average_every = 0;  // averaged gradients are the same, but rounded once
  return options;
}

}  // namespace lockstep
