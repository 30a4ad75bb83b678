// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_conflicts.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "comm/exchanges/exchanges.h"
#include "launch/observe/prometheus/listen_address.h"

namespace lockstep {
namespace {

// The keys of a feature.
struct FeatureKeys {
  bool on;              // in this configuration
  std::string with;     // the value that has the feature, after its key
  std::string without;  // the allowed value that does not have it
};
using KeysOfFeatures = std::map<Feature, FeatureKeys>;

FeatureKeys feature_flag(std::string_view key, bool on) {
  return {on, fmt::format("{} = true", key), fmt::format("{} = false", key)};
}
template <typename Number>
FeatureKeys feature_number(std::string_view key, Number value, int off = 0) {
  return {value > off,
          value > off ? fmt::format("{} = {}", key, value) : fmt::format("{} above {}", key, off),
          fmt::format("{} = 0", key)};
}

// `with` of a feature that requires nothing, and `without` of one that nothing excludes, are empty.
KeysOfFeatures keys_of_features(const Config& config) {
  using enum Feature;
  const auto& trainer = config.trainer;
  const auto& gradients = config.gradients;
  const auto& mix = config.network.augmentation;
  return {
      {random_crop, feature_flag("data.random_resized_crop", config.dataset.resize.random_crop)},
      {unresized, {config.dataset.resize.size <= 0, "", "data.resize above 0"}},
      {preload, {config.loader_mode == LoaderMode::preload, "data.loader = \"preload\"", ""}},
      {device_loader, {config.loader_mode == LoaderMode::device, "data.loader = \"device\"", ""}},
      {stream_loader,
       {config.loader_mode == LoaderMode::stream, "", "data.loader = \"preload\", \"device\" or \"auto\""}},
      {preload_before, {config.preload_time == PreloadTime::before, "data.preload = \"before\"", ""}},
      {host_augmentation, {config.augments_on_host(), "", "data.augment_on = \"device\""}},
      {mixup, {mix.mixup > 0, "data.mixup above 0", ""}},
      {cutmix, {mix.mixup <= 0 && mix.cutmix > 0, "data.cutmix above 0", ""}},  // one error for both
      {odd_batch, {config.loader.batch % 2 != 0, "", "an even train.batch"}},
      {exact_tail,
       {config.loader.tail == Tail::exact, "data.tail = \"exact\"", "a data.tail other than \"exact\""}},
      {reproducible, feature_flag("train.reproducible", config.reproducible)},
      {sync_batch_norm, feature_flag("model.sync_batch_norm", config.model.sync_batch_norm)},
      {clip_norm, feature_number("optimizer.clip_norm", trainer.clip_norm)},
      {ema_decay, feature_number("train.ema_decay", trainer.ema_decay)},
      {early_stopping, feature_number("run.stop_after_epochs", config.best.stop_after_epochs)},
      {last_evaluation, {trainer.evaluate_epochs <= 0, "", "run.evaluate_every above 0"}},
      {staleness, feature_number("train.staleness", gradients.staleness)},
      {average_every, feature_number("train.average_every", trainer.average_every, 1)},
      {ring, {trainer.topology == Topology::ring, "comm.topology = \"ring\"", "comm.topology = \"all\""}},
      {apart,
       {trainer.average_every > 1 || trainer.topology == Topology::ring, "",
        "train.average_every = 0 and comm.topology = \"all\""}},
      {not_waiting,
       {gradients.staleness > 0 || trainer.average_every > 1, "",
        "train.staleness = 0 and train.average_every = 0"}},
      {cross_barrier, feature_flag("comm.cross_barrier", gradients.cross_barrier)},
      {sharded,
       {gradients.exchange == ExchangeForm::sharded, "comm.exchange = \"sharded\"",
        "comm.exchange = \"dense\""}},
      // bucket_options() knows all optimizers.
      {whole_layers, {config.optimizer.name == "lars", "", "an optimizer.name other than \"lars\""}},
      {no_overlap, {!gradients.overlap, "", "comm.overlap = true"}},
      {max_skipped_steps, feature_number("train.max_skipped_steps", trainer.max_skipped_steps)},
      {step_check, {config.check == CallCheck::step, "", "comm.check = \"plan\", \"collective\" or \"off\""}},
      {dynamic_loss_scale,
       {config.network.precision == Precision::fp16 && config.loss_scale.dynamic(), "",
        "a train.precision other than \"fp16\", or train.loss_scale_interval = 0"}},
      {mpi_sums,
       {config.between_nodes == AllReduceWay::mpi, "",
        "comm.between_nodes = \"auto\", \"direct\" or \"halving\""}},
      {codec,
       {gradients.codec != kDenseSum.name || gradients.codec_for != kDenseSum.name, "",
        "comm.codec = \"none\" and comm.codec_for = \"none\""}},
      {auto_codec, {gradients.codec == kAutoCodec.name, "comm.codec = \"auto\"", ""}},
      // bucket_options() knows the codecs, and refuses these itself.
      {momentum_codec, {false, "comm.codec = \"dgc\"", ""}},
      {other_optimizer, {config.optimizer.name != "sgd", "", "optimizer.name = \"sgd\""}},
      {checkpoint_every, feature_number("run.checkpoint_every", config.checkpoints.every)},
      {evaluations_within, feature_number("run.metrics_every", trainer.evaluate_every)},
      {profile, feature_number("profile.active", config.profile.active)},
      {gpu,
       {config.device.device == "cuda" || config.device.device == "idle", "", "world.device = \"cpu\""}}};
}

std::string conflict_in_normalization(const NetworkOptions& network) {
  const std::size_t means = network.mean.size(), deviations = network.deviation.size();
  if (means == deviations || means == 0 || deviations == 0) return {};
  return fmt::format(
      "data.mean has {} and data.deviation has {} values: set one value per channel in both, or []", means,
      deviations);
}

std::string conflict_in_prometheus(const Config& config) {
  const PrometheusOptions& options = config.prometheus;
  if (options.address != PrometheusOptions::kNone && !parse_listen_address(options.address))
    return fmt::format(
        "run.prometheus_address = \"{}\": a port, ADDRESS:PORT, [ADDRESS]:PORT or none is expected",
        options.address);
  if (!options.any() || config.monitor_seconds > 0) return {};
  return fmt::format(
      "run.monitor_seconds = 0: {} needs a larger value, because metrics are sampled by the "
      "monitor",
      options.dir != PrometheusOptions::kNone ? "run.prometheus_dir" : "run.prometheus_address");
}

std::string conflict_in_monitor(const Config& config) {
  constexpr double kLeast = 0.001;
  if (config.monitor_seconds <= 0 || config.monitor_seconds >= kLeast) return {};
  return fmt::format("run.monitor_seconds = {}: 0 or at least {} is expected", config.monitor_seconds,
                     kLeast);
}

std::string conflict_in_nesterov(const OptimizerSettings& optimizer) {
  if (!optimizer.nesterov) return {};
  if (optimizer.name != "sgd")
    return fmt::format("optimizer.nesterov = true: allowed with optimizer.name = \"sgd\", not \"{}\"",
                       optimizer.name);
  return optimizer.momentum == 0 ? "optimizer.nesterov = true: optimizer.momentum > 0 is expected, not 0"
                                 : "";
}

std::string conflict_in_schedule(const ScheduleSettings& schedule) {
  if (schedule.name != "step" || !schedule.milestones.empty()) return {};
  return "schedule.name = \"step\": at least one epoch in schedule.milestones is expected, such as [30, 60], "
         "not []";
}

std::string conflict_in_ctas(const DeviceCommunicatorOptions& options) {
  if (options.ctas_beside_compute > 0 && options.cta_policy == CtaPolicy::efficiency) {
    return fmt::format(
        "comm.ctas_beside_compute = {}: allowed only without comm.cta_policy = \"efficiency\", "
        "because NCCL ignores that policy if it has a tuner",
        options.ctas_beside_compute);
  }
  if (options.max_ctas > 0 && options.ctas_beside_compute > options.max_ctas) {
    return fmt::format("comm.ctas_beside_compute = {}: at most comm.max_ctas = {} is expected",
                       options.ctas_beside_compute, options.max_ctas);
  }
  if (options.max_ctas == 0 || options.min_ctas <= options.max_ctas) return {};
  return fmt::format("comm.min_ctas = {}: at most comm.max_ctas = {} is expected", options.min_ctas,
                     options.max_ctas);
}

std::string conflict_in_kernel_times(const Config& config) {
  if (!config.device_communicator.kernel_times || !config.trainer.record_steps) return {};
  return "comm.kernel_times = true: allowed only with train.cuda_graph = false, because NCCL (2.28 to 2.30) "
         "loses count of its kernels where replayed and enqueued collectives alternate";
}

}  // namespace

std::vector<std::string> conflicts_in(const Config& config) {
  std::vector<std::string> found = {conflict_in_normalization(config.network)};
  const KeysOfFeatures keys = keys_of_features(config);
  for (const Exclusion& row : exclusions()) {
    const FeatureKeys &feature = keys.at(row.feature), &other = keys.at(row.other);
    if (feature.on && other.on)
      found.push_back(
          fmt::format("{}: allowed only with {}, because {}", feature.with, other.without, row.reason));
  }
  found.push_back(conflict_in_nesterov(config.optimizer));
  found.push_back(conflict_in_schedule(config.schedule));
  found.push_back(conflict_in_prometheus(config));
  found.push_back(conflict_in_monitor(config));
  found.push_back(conflict_in_ctas(config.device_communicator));
  found.push_back(conflict_in_kernel_times(config));
  std::erase(found, "");
  return found;
}

std::vector<std::string> settings_without_effect(const Config& config) {
  const ScheduleSettings& schedule = config.schedule;
  // A schedule of the user's own program may use the milestones.
  const bool uses_none = schedule.name == "constant" || schedule.name == "cosine";
  const double last = schedule.milestones.empty() ? 0 : schedule.milestones.back();
  struct Row {
    bool without_effect;
    std::string setting, with, needed;
  };
  const Row rows[] = {
      {config.trainer.average_after > 0 && config.trainer.average_every <= 1, "train.average_after",
       fmt::format("train.average_every = {}", config.trainer.average_every), "train.average_every above 1"},
      {config.best.stop_min_delta > 0 && config.best.stop_after_epochs == 0, "run.stop_min_delta",
       "run.stop_after_epochs = 0", "run.stop_after_epochs above 0"},
      {last > 0 && uses_none, "schedule.milestones", fmt::format("schedule.name = \"{}\"", schedule.name),
       "schedule.name = \"step\""},
      {last >= static_cast<double>(config.trainer.epochs) && schedule.name == "step",
       fmt::format("epoch {} of schedule.milestones", last),
       fmt::format("train.epochs = {}", config.trainer.epochs), fmt::format("train.epochs above {}", last)}};
  std::vector<std::string> found;
  for (const Row& row : rows)
    if (row.without_effect)
      found.push_back(
          fmt::format("{} has no effect with {}: remove it, or set {}", row.setting, row.with, row.needed));
  return found;
}

bool could_turn_on(Feature feature, const Config& config) {
  const KeysOfFeatures keys = keys_of_features(config);
  return std::ranges::none_of(exclusions(), [&](const Exclusion& row) {
    return (row.feature == feature && keys.at(row.other).on) ||
           (row.other == feature && keys.at(row.feature).on);
  });
}

std::string conflicts_as_markdown() {
  std::string text = "\n## What excludes what\n\n| setting | allowed only with | reason |\n|---|---|---|\n";
  const KeysOfFeatures keys = keys_of_features({});
  for (const Exclusion& row : exclusions())
    text +=
        fmt::format("| {} | {} | {} |\n", keys.at(row.feature).with, keys.at(row.other).without, row.reason);
  return text;
}

}  // namespace lockstep
