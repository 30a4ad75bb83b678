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
      need(config_.dataset.resize.size > 0, "a data.resize above 0", "parts of images differ in size");
    }
    if (config_.loader_mode == LoaderMode::preload || config_.loader_mode == LoaderMode::device) {
      key_ = "data.loader", value_ = fmt::format("data.loader = \"{}\"", word_of(config_.loader_mode));
      need(!config_.dataset.resize.random_crop, "data.random_resized_crop = false",
           "parts of images differ from epoch to epoch");
    }
    if (config_.loader_mode == LoaderMode::device) {
      key_ = "data.loader", value_ = "data.loader = \"device\"";
      need(!config_.augments_on_host(), "data.augment_on = \"device\"",
           "the loader's threads do not see images that lie there");
    }
    if (config_.reproducible) {
      key_ = "train.reproducible", value_ = "train.reproducible = true";
      need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
           "moments over ranks depend on how micro-batches are dealt to them");
    }
    if (config_.network.augmentation.mixes()) {
      const bool mixup = config_.network.augmentation.mixup > 0;
      key_ = mixup ? "data.mixup" : "data.cutmix", value_ = fmt::format("{} above 0", key_);
      need(config_.loader.batch % 2 == 0, "an even train.batch", "images are mixed in pairs");
      need(config_.loader.tail != Tail::exact, "another data.tail than \"exact\"",
           "who is whose neighbour in a short batch depends on the number of ranks");
    }
    if (config_.loader.tail == Tail::exact) {
      key_ = "data.tail", value_ = "data.tail = \"exact\"";
      need(config_.trainer.average_every <= 1 && config_.trainer.topology != Topology::ring,
           "train.average_every = 0 and comm.topology = \"all\"",
           "the mean over a short batch is one over all ranks");
    }
    if (config_.trainer.clip_norm > 0) find_in_clipping();
    if (config_.trainer.ema_decay > 0) find_in_average();
    if (config_.best.stop_after_epochs > 0) {
      key_ = "run.stop_after_epochs",
      value_ = fmt::format("run.stop_after_epochs = {}", config_.best.stop_after_epochs);
      need(config_.trainer.evaluate_epochs > 0, "a run.evaluate_every above 0",
           "it is evaluations before the last that tell when to stop");
    }
    if (config_.trainer.average_every > 1) find_in_local_sgd();
    if (config_.trainer.topology == Topology::ring) find_in_ring();
    if (config_.gradients.staleness > 0) {
      key_ = "train.staleness", value_ = "train.staleness = 1";
      need(!config_.reproducible, "train.reproducible = false",
           "its micro-batches are added up where the gradients of the step before travel");
    }
    if (config_.gradients.cross_barrier) {
      for (const std::string_view allowed : cross_barrier_needs(config_))
        add("comm.cross_barrier", fmt::format("comm.cross_barrier = true: allowed with {}", allowed));
    }
    find_in_codec();
    find_in_nesterov();
    return std::move(found_);
  }

 private:
  void add(std::string_view key, std::string what) { found_.push_back({key, std::move(what)}); }
  // Checks key_ with its value_.
  void need(bool right, std::string_view allowed, std::string_view reason) {
    if (!right) add(key_, fmt::format("{}: allowed with {}, as {}", value_, allowed, reason));
  }

  void find_in_normalization() {
    const std::size_t means = config_.network.mean.size(), deviations = config_.network.deviation.size();
    if (means == deviations || means == 0 || deviations == 0) return;
    add("data.mean", fmt::format("data.mean has {} and data.deviation has {} values: one for each channel is "
                                 "expected in both, or [] for none",
                                 means, deviations));
  }

  void find_in_clipping() {
    key_ = "optimizer.clip_norm", value_ = fmt::format("optimizer.clip_norm = {}", config_.trainer.clip_norm);
    need(!config_.gradients.cross_barrier, "comm.cross_barrier = false",
         "parameters are then updated before the gradients of all of them have arrived, whose norm it is");
    need(config_.gradients.staleness == 0, "train.staleness = 0",
         "a rank computes where its own gradients would lead, whose norm is not that of their mean");
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "ranks then take gradients of their own, of which no mean is known");
    need(config_.trainer.topology != Topology::ring, "comm.topology = \"all\"",
         "ranks on a ring take gradients of their own, of which no mean is known");
  }

  void find_in_average() {
    key_ = "train.ema_decay", value_ = fmt::format("train.ema_decay = {}", config_.trainer.ema_decay);
    need(!config_.gradients.cross_barrier, "comm.cross_barrier = false",
         "the parameters of a step are then there piece by piece, within the next");
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "each rank has parameters of its own, and their mean over ranks is what is evaluated");
    need(config_.trainer.topology != Topology::ring, "comm.topology = \"all\"",
         "ranks on a ring have parameters of their own, and their mean is what is evaluated");
  }

  void find_in_local_sgd() {
    key_ = "train.average_every",
    value_ = fmt::format("train.average_every = {}", config_.trainer.average_every);
    need(!config_.reproducible, "train.reproducible = false",
         "what ranks train apart depends on how many they are");
    need(config_.gradients.staleness == 0, "train.staleness = 0",
         "ranks then exchange no gradients that could be late");
    need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
         "it has ranks wait for each other in every layer of every step");
  }

  void find_in_ring() {
    key_ = "comm.topology", value_ = "comm.topology = \"ring\"";
    need(config_.trainer.average_every <= 1, "train.average_every = 0",
         "ranks average with their neighbours after every step, and never all at once");
    need(config_.gradients.staleness == 0, "train.staleness = 0", "no gradients are exchanged");
    need(config_.gradients.codec == kDenseSum.name && config_.gradients.codec_for == kDenseSum.name,
         "comm.codec = \"none\" and without comm.codec_for", "neighbours see parameters as they are");
    need(!config_.reproducible, "train.reproducible = false",
         "what a rank averages with depends on who was faster");
    need(!config_.model.sync_batch_norm, "model.sync_batch_norm = false",
         "ranks would wait for each other in every layer");
    need(config_.checkpoints.every == 0, "run.checkpoint_every = 0",
         "ranks meet behind an epoch alone; run.checkpoint_minutes saves there");
    need(config_.trainer.evaluate_every == 0, "run.metrics_every = 0",
         "ranks meet behind an epoch alone, and are evaluated there");
    need(!config_.profile.any(), "profile.active = 0",
         "ranks take steps of their own, of which none is any other's");
    need(config_.device.device != "cuda" && config_.device.device != "idle", "world.device = \"cpu\"",
         "neighbours look into the memory of a node");
  }

  void find_in_codec() {
    if (config_.gradients.codec != kAutoCodec.name) return;
    key_ = "comm.codec", value_ = "comm.codec = \"auto\"";
    need(config_.gradients.staleness == 0 && config_.trainer.average_every <= 1,
         "train.staleness = 0 and train.average_every = 0",
         "it is the time of steps that wait for their gradients that tells what a codec gains; name a codec");
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
