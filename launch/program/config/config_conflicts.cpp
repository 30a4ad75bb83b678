// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_conflicts.h"

#include <utility>

#include <fmt/format.h>

#include "comm/exchanges/exchanges.h"
#include "launch/program/setup/engine_options.h"

namespace lockstep {
namespace {

class Conflicts {
 public:
  explicit Conflicts(const Config& config) : config_(config) {}

  std::vector<ConfigConflict> find() {
    find_in_normalization();
    if (config_.dataset.resize.random_crop) {
      key_ = "data.random_resized_crop", value_ = "data.random_resized_crop = true";
      need(config_.dataset.resize.size > 0, "data.resize above 0", "random parts of images differ in size");
    }
    if (config_.loader_mode == LoaderMode::preload || config_.loader_mode == LoaderMode::device) {
      key_ = "data.loader", value_ = fmt::format("data.loader = \"{}\"", word_of(config_.loader_mode));
      need(!config_.dataset.resize.random_crop, "data.random_resized_crop = false",
           "random parts of images differ from epoch to epoch");
    }
    if (config_.loader_mode == LoaderMode::device) {
      key_ = "data.loader", value_ = "data.loader = \"device\"";
      need(!config_.augments_on_host(), "data.augment_on = \"device\"",
           "the loader's threads cannot change images in device memory");
    }
    if (config_.reproducible) {
      key_ = "train.reproducible", value_ = "train.reproducible = true";
      need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
           "moments over ranks depend on how many micro-batches each rank has");
    }
    if (config_.network.augmentation.mixes()) {
      const bool mixup = config_.network.augmentation.mixup > 0;
      key_ = mixup ? "data.mixup" : "data.cutmix", value_ = fmt::format("{} above 0", key_);
      need(config_.loader.batch % 2 == 0, "an even train.batch", "images are mixed in pairs");
      need(config_.loader.tail != Tail::exact, "a data.tail other than \"exact\"",
           "the pairs in a short batch depend on the number of ranks");
    }
    if (config_.loader.tail == Tail::exact) {
      key_ = "data.tail", value_ = "data.tail = \"exact\"";
      need(config_.trainer.average_every <= 1 && config_.trainer.topology != Topology::ring,
           "train.average_every = 0 and comm.topology = \"all\"",
           "the mean over a short batch needs the gradients of all ranks");
    }
    if (config_.trainer.clip_norm > 0) find_in_clipping();
    if (config_.trainer.ema_decay > 0) find_in_average();
    if (config_.best.stop_after_epochs > 0) {
      key_ = "run.stop_after_epochs",
      value_ = fmt::format("run.stop_after_epochs = {}", config_.best.stop_after_epochs);
      need(config_.trainer.evaluate_epochs > 0, "run.evaluate_every above 0",
           "early stopping compares evaluations before the last epoch");
    }
    if (config_.trainer.average_every > 1) find_in_local_sgd();
    if (config_.trainer.topology == Topology::ring) find_in_ring();
    if (config_.gradients.staleness > 0) {
      key_ = "train.staleness", value_ = "train.staleness = 1";
      need(!config_.reproducible, "train.reproducible = false",
           "it adds micro-batches in the memory in which late gradients are exchanged");
    }
    if (config_.gradients.cross_barrier) {
      for (const std::string_view allowed : cross_barrier_needs(config_))
        add("comm.cross_barrier", fmt::format("comm.cross_barrier = true: allowed only with {}", allowed));
    }
    find_in_codec();
    find_in_nesterov();
    return std::move(found_);
  }

 private:
  void add(std::string_view key, std::string what) { found_.push_back({key, std::move(what)}); }
  // Checks key_ with its value_.
  void need(bool right, std::string_view allowed, std::string_view reason) {
    if (!right) add(key_, fmt::format("{}: allowed only with {}, because {}", value_, allowed, reason));
  }

  void find_in_normalization() {
    const std::size_t means = config_.network.mean.size(), deviations = config_.network.deviation.size();
    if (means == deviations || means == 0 || deviations == 0) return;
    add("data.mean",
        fmt::format(
            "data.mean has {} and data.deviation has {} values: set one value per channel in both, or []",
            means, deviations));
  }

  void find_in_clipping() {
    key_ = "optimizer.clip_norm", value_ = fmt::format("optimizer.clip_norm = {}", config_.trainer.clip_norm);
    need(!config_.gradients.cross_barrier, "comm.cross_barrier = false",
         "otherwise parameters are updated before all gradients have arrived, whose norm clipping needs");
    need(config_.gradients.staleness == 0, "train.staleness = 0",
         "each rank predicts parameters from its own gradients, whose norm is not that of their mean");
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "otherwise ranks use local gradients, whose mean is not computed");
    need(config_.trainer.topology != Topology::ring, "comm.topology = \"all\"",
         "ranks on a ring use local gradients, whose mean is not computed");
  }

  void find_in_average() {
    key_ = "train.ema_decay", value_ = fmt::format("train.ema_decay = {}", config_.trainer.ema_decay);
    need(!config_.gradients.cross_barrier, "comm.cross_barrier = false",
         "otherwise the parameters of a step are updated bucket by bucket during the next step");
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "otherwise ranks have different parameters, and evaluations use their mean");
    need(config_.trainer.topology != Topology::ring, "comm.topology = \"all\"",
         "ranks on a ring have different parameters, and evaluations use their mean");
  }

  void find_in_local_sgd() {
    key_ = "train.average_every",
    value_ = fmt::format("train.average_every = {}", config_.trainer.average_every);
    need(!config_.reproducible, "train.reproducible = false",
         "the results of local steps depend on the number of ranks");
    need(config_.gradients.staleness == 0, "train.staleness = 0",
         "local SGD exchanges no gradients that could be late");
    need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
         "otherwise ranks wait for each other in every batch norm layer of every step");
  }

  void find_in_ring() {
    key_ = "comm.topology", value_ = "comm.topology = \"ring\"";
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "ranks on a ring average with their neighbours after every step, never with all ranks");
    need(config_.gradients.staleness == 0, "train.staleness = 0", "no gradients are exchanged");
    need(config_.gradients.codec == kDenseSum.name && config_.gradients.codec_for == kDenseSum.name,
         "comm.codec = \"none\" and comm.codec_for = \"none\"",
         "neighbours exchange uncompressed parameters");
    need(!config_.reproducible, "train.reproducible = false",
         "the parameters that a rank averages with depend on its neighbours' speed");
    need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
         "otherwise ranks wait for each other in every batch norm layer");
    need(config_.checkpoints.every == 0, "run.checkpoint_every = 0",
         "ranks synchronise only after an epoch, where run.checkpoint_minutes saves");
    need(config_.trainer.evaluate_every == 0, "run.metrics_every = 0",
         "ranks synchronise only after an epoch, and are evaluated there");
    need(!config_.profile.any(), "profile.active = 0",
         "the steps of different ranks do not correspond to each other");
    need(config_.device.device != "cuda" && config_.device.device != "idle", "world.device = \"cpu\"",
         "neighbours read each other's parameters in host memory");
  }

  void find_in_codec() {
    if (config_.gradients.codec != kAutoCodec.name) return;
    key_ = "comm.codec", value_ = "comm.codec = \"auto\"";
    need(config_.gradients.staleness == 0 && config_.trainer.average_every <= 1,
         "train.staleness = 0 and train.average_every = 0",
         "codecs are compared by the time of steps that wait for their gradients; otherwise name a codec");
  }

  void find_in_nesterov() {
    const auto& optimizer = config_.optimizer;
    if (!optimizer.nesterov) return;
    if (optimizer.name != "sgd") {
      add("optimizer.nesterov",
          fmt::format("optimizer.nesterov = true: allowed with optimizer.name = \"sgd\", not \"{}\"",
                      optimizer.name));
    } else if (optimizer.momentum == 0) {
      add("optimizer.nesterov", "optimizer.nesterov = true: optimizer.momentum > 0 is expected, not 0");
    }
  }

  const Config& config_;
  std::string_view key_;
  std::string value_;
  std::vector<ConfigConflict> found_;
};

}  // namespace

std::vector<ConfigConflict> conflicts_in(const Config& config) { return Conflicts(config).find(); }

}  // namespace lockstep
