// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/engine_options.h"

#include <algorithm>

#include "comm/codecs/codec.h"
#include "core/error.h"
#include "data/device_batches.h"

namespace lockstep {
namespace {

// A codec that adds momentum in place of the optimizer does so as SGD does.
void require_momentum(const ExchangeChoice& choice, const OptimizerSettings& optimizer) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum || optimizer.name == "sgd") return;
  throw ConfigError(
      fmt::format("comm.codec = \"{}\" adds SGD's momentum to gradients before it compresses them, which "
                  "optimizer.name = \"{}\" does not use: set optimizer.name = \"sgd\", or another codec",
                  choice.kind->name, optimizer.name));
}

// Clipping needs the norm of the mean gradient, which does not include momentum.
void require_no_clipping(const ExchangeChoice& choice, const Config& config) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum || config.trainer.clip_norm == 0)
    return;
  throw ConfigError(
      fmt::format("optimizer.clip_norm = {0}: comm.codec = \"{1}\" adds momentum to gradients before their "
                  "mean is computed; set optimizer.clip_norm = 0 and comm.{1}.clip, with which each rank "
                  "clips its own gradients, or another codec, such as \"topk\"",
                  config.trainer.clip_norm, choice.kind->name));
}

// Differences of parameters already include the momentum of their steps.
void require_no_momentum(const ExchangeChoice& choice, const Config& config) {
  if (choice.kind->codec == nullptr || !choice.kind->codec->adds_momentum) return;
  throw ConfigError(
      fmt::format("train.average_every = {}: comm.codec = \"{}\" adds momentum to gradients, but ranks "
                  "exchange differences of parameters; set another codec, such as \"topk\"",
                  config.trainer.average_every, choice.kind->name));
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
  require_momentum(options.exchange, config.optimizer);
  require_no_clipping(options.exchange, config);
  for (const CodecRule& rule : options.codecs.rules) {
    require_momentum(rule.choice, config.optimizer);
    require_no_clipping(rule.choice, config);
  }
  if (config.trainer.average_every > 1) {
    require_no_momentum(options.exchange, config);
    for (const CodecRule& rule : options.codecs.rules) require_no_momentum(rule.choice, config);
  }
  options.momentum = {.momentum = config.optimizer.momentum, .nesterov = config.optimizer.nesterov};
  if (config.optimizer.name != "sgd" || config.trainer.average_every > 1 || config.trainer.clip_norm > 0) {
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

std::vector<std::string_view> cross_barrier_needs(const Config& config) {
  std::vector<std::string_view> needs;
  const auto require = [&](bool given, std::string_view what) {
    if (!given) needs.push_back(what);
  };
  require(config.gradients.overlap,
          "comm.overlap = true, because otherwise gradients wait for the end of the backward pass");
  require(config.trainer.max_skipped_steps == 0,
          "train.max_skipped_steps = 0, because a partially applied step can be rolled back only once");
  require(config.gradients.staleness == 0,
          "train.staleness = 0, because late gradients already have the whole next step to arrive");
  require(config.trainer.average_every <= 1,
          "train.average_every = 0, because local SGD exchanges no gradients");
  require(!config.reproducible,
          "train.reproducible = false, because it updates running statistics from all ranks after each step");
  require(config.trainer.topology != Topology::ring,
          "comm.topology = \"all\", because ranks on a ring exchange no gradients");
  require(config.check != CallCheck::step,
          "comm.check = \"plan\", \"collective\" or \"off\", because comparing the calls of every step waits "
          "for all ranks");
  require(config.network.precision != Precision::fp16 || !config.loss_scale.dynamic(),
          "train.precision = \"fp32\" or \"bf16\", or train.loss_scale_interval = 0, because a step that "
          "fp16's loss scale skips must not be partially applied");
  return needs;
}

TrainerOptions trainer_options(const Config& config) {
  TrainerOptions options = config.trainer;
  options.accumulation = config.loader.accumulation;
  if (options.until_epoch > 0) options.epochs = std::min(options.epochs, options.until_epoch);
  options.cross_barrier = config.gradients.cross_barrier;
  options.metrics = metric_choice(config.metrics);
  options.norm_every = config.log_every;
  if (options.average_every == 1)
    options.average_every = 0;  // averaging gradients gives the same result with one rounding
  return options;
}

}  // namespace lockstep
