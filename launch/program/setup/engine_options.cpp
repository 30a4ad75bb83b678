// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/engine_options.h"

#include <algorithm>

#include "comm/codecs/codec.h"
#include "core/error.h"
#include "data/device_batches.h"
#include "launch/train/compatibility.h"

namespace lockstep {
namespace {

// A codec that adds momentum in place of the optimizer does so as SGD does.
void check_momentum(const ExchangeChoice& choice, const Config& config) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum) return;
  const auto why = [](Feature other) { return find_exclusion(Feature::momentum_codec, other)->reason; };
  if (config.optimizer.name != "sgd") {
    throw ConfigError(
        fmt::format("comm.codec = \"{}\" {}, which optimizer.name = \"{}\" does not use: set "
                    "optimizer.name = \"sgd\", or another codec",
                    choice.kind->name, why(Feature::other_optimizer), config.optimizer.name));
  }
  if (config.trainer.clip_norm != 0) {
    throw ConfigError(
        fmt::format("optimizer.clip_norm = {0}: comm.codec = \"{1}\" {2}; set optimizer.clip_norm = 0 and "
                    "comm.{1}.clip, with which each rank clips its own gradients, or another codec, such as "
                    "\"topk\"",
                    config.trainer.clip_norm, choice.kind->name, why(Feature::clip_norm)));
  }
  if (config.gradients.staleness > 0) {
    throw ConfigError(
        fmt::format("train.staleness = {}: comm.codec = \"{}\" {}; set another codec, such as \"topk\"",
                    config.gradients.staleness, choice.kind->name, why(Feature::staleness)));
  }
  if (config.trainer.average_every > 1) {
    throw ConfigError(
        fmt::format("train.average_every = {}: comm.codec = \"{}\" {}; set another codec, such as \"topk\"",
                    config.trainer.average_every, choice.kind->name, why(Feature::average_every)));
  }
}

void check_sharing(const Config& config, const Registry& registry) {
  if (config.gradients.exchange != ExchangeForm::sharded) return;
  if (optimizer_kind(config.optimizer.name, registry.optimizers).by_element) return;
  throw ConfigError(
      fmt::format("comm.exchange = \"sharded\": not allowed with optimizer.name = \"{}\", because {}; set "
                  "comm.exchange = \"dense\", or another optimizer",
                  config.optimizer.name, find_exclusion(Feature::sharded, Feature::whole_layers)->reason));
}

}  // namespace

LoaderOptions loader_options(const Config& config, Device device) {
  LoaderOptions options = config.loader;
  options.seed = config.network.seed;
  options.on_error = config.dataset.on_error;
  options.device = device;
  options.kept = DeviceBatches::loader_keeps({.device = device, .micro_batches = config.loader.accumulation});
  options.slots = options.kept + 3;
  return options;
}

NetworkOptions network_options(const Config& config, Device device) {
  NetworkOptions options = config.network;
  options.device = device;
  if (config.augments_on_host()) options.augmentation = options.augmentation.behind_bytes();
  return options;
}

BucketOptions bucket_options(const Config& config, const Registry& registry) {
  BucketOptions options = bucket_options(config.gradients, registry.exchanges);
  check_sharing(config, registry);
  check_momentum(options.exchange, config);
  for (const CodecRule& rule : options.codecs.rules) check_momentum(rule.choice, config);
  options.momentum = {.momentum = config.optimizer.momentum, .nesterov = config.optimizer.nesterov};
  if (config.optimizer.name != "sgd" || config.trainer.average_every > 1 || config.trainer.clip_norm > 0 ||
      options.delayed) {
    options.exchange = without_momentum(options.exchange);
    for (CodecRule& rule : options.codecs.rules) rule.choice = without_momentum(rule.choice);
  }
  // "auto" may start or stop using these during training.
  for (ExchangeChoice& each : options.codecs.candidates) each = without_momentum(each);
  options.micro_batches = config.loader.accumulation;
  options.along_tree = config.reproducible;
  return options;
}

LossScaleOptions loss_scale_options(const Config& config) {
  return config.network.precision == Precision::fp16 ? config.loss_scale : LossScaleOptions{};
}

TrainerOptions trainer_options(const Config& config) {
  TrainerOptions options = config.trainer;
  options.accumulation = config.loader.accumulation;
  if (config.until_epoch > 0) options.epochs = std::min(options.epochs, config.until_epoch);
  options.cross_barrier = config.gradients.cross_barrier;
  options.metrics = metric_choice(config.metrics);
  options.norm_every = config.log_every;
  if (options.average_every == 1)
    options.average_every = 0;  // averaging gradients gives the same result with one rounding
  return options;
}

void require_features_on(const Config& config, Device device) {
  if (device.kind == DeviceKind::cpu) return;
  if (config.trainer.topology != Topology::ring) return;
  throw ConfigError(fmt::format(
      "comm.topology = \"ring\" on {}: {}; set world.device = \"cpu\", or comm.topology = \"all\"",
      to_string(device), find_exclusion(Feature::ring, Feature::gpu)->reason));
}

}  // namespace lockstep
