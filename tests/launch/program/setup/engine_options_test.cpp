// SPDX-License-Identifier: Apache-2.0
//
// Every key changes the option that it is meant for, and no other.
#include "launch/program/setup/engine_options.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "launch/program/config/config_conflicts.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/devices/kernel_cache.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kStepsPerEpoch = 100;

template <typename Options>
std::string name_of(const Options& options, std::initializer_list<const char*> names) {
  return *(names.begin() + static_cast<int>(options));
}

// All options that the engine receives, as text by name.
std::map<std::string, std::string> told(const Config& config) {
  std::map<std::string, std::string> all;
  const auto tell = [&](const std::string& option, const auto& value) {
    all[option] = fmt::format("{}", value);
  };
  tell("dataset.format", config.dataset.format);
  tell("dataset.path", config.dataset.path);
  tell("dataset.validation_share", config.dataset.validation_share);
  tell("dataset.resize", config.dataset.resize.size);
  tell("dataset.random_crop", config.dataset.resize.random_crop);
  tell("dataset.center_share", config.dataset.resize.center_share);
  const SyntheticOptions& synthetic = config.dataset.synthetic;
  tell("dataset.shape", fmt::format("{} {} {}", synthetic.height, synthetic.width, synthetic.channels));
  tell("dataset.classes", synthetic.classes);
  tell("dataset.train", synthetic.train_samples);
  tell("dataset.test", synthetic.test_samples);
  const CsvOptions& csv = config.dataset.csv;
  tell("dataset.test_split", config.dataset.test_split);
  tell("dataset.channels", config.dataset.images.channels);
  tell("dataset.exif_orientation", name_of(config.dataset.images.exif_orientation, {"apply", "ignore"}));
  tell("dataset.recursive", config.dataset.recursive);
  tell("dataset.delimiter", name_of(csv.delimiter, {"auto", "comma", "semicolon", "tab"}));
  tell("dataset.header", name_of(csv.header, {"auto", "yes", "no"}));
  tell("dataset.tfrecord", config.dataset.tfrecord.image + config.dataset.tfrecord.label);
  tell("dataset.label", csv.label);
  tell("dataset.ignore", csv.ignore);
  tell("dataset.scaling", name_of(csv.scaling, {"none", "min_max", "standard"}));
  tell("dataset.images", config.dataset.hdf5.images);
  tell("dataset.mask_classes", config.dataset.masks.classes);
  tell("dataset.ignore_index", config.dataset.masks.ignore_index);
  tell("dataset.labels", config.dataset.hdf5.labels);
  tell("dataset.on_error", name_of(config.dataset.on_error, {"leave_out", "stop"}));

  tell("verify.extent", name_of(config.verify.extent, {"headers", "all", "none"}));

  tell("preload_time", name_of(config.preload_time, {"during", "before"}));
  tell("loader_mode", name_of(config.loader_mode, {"auto", "stream", "preload", "device"}));
  tell("augment_on", name_of(config.augment_on, {"auto", "host", "device"}));
  const LoaderOptions loader = loader_options(config, {.kind = DeviceKind::cuda, .index = 3});
  tell("loader.batch", loader.batch);
  tell("loader.accumulation", loader.accumulation);
  tell("loader.tail", name_of(loader.tail, {"drop", "carry", "repeat", "exact", "pad"}));
  tell("loader.on_error", name_of(loader.on_error, {"leave_out", "stop"}));
  tell("loader.seed", loader.seed);
  tell("loader.threads", loader.threads);
  tell("loader.device", to_string(loader.device));

  const NetworkChoice& choice = config.model;
  tell("choice.name", choice.name);
  tell("choice.batch_norm", choice.batch_norm);
  tell("choice.stem", name_of(choice.stem, {"auto", "cifar", "imagenet"}));
  tell("choice.zero_init_residual", choice.zero_init_residual);
  tell("choice.sync_batch_norm", choice.sync_batch_norm);
  tell("choice.dropout", choice.dropout);
  tell("choice.reset_head", word_of(choice.reset_head));
  tell("choice.freeze", fmt::format("{}", fmt::join(choice.freeze, " ")));
  tell("choice.loss", word_of(choice.loss));
  std::vector<LayerSpec> layers = choice.layers;
  tell("choice.layers", detail::value_text(&layers));
  tell("export_precision", name_of(config.export_precision, {"fp32", "fp16", "bf16"}));
  for (const NetworkEntry& entry : network_table())
    for (const NumberOption& option : entry.options)
      tell(fmt::format("choice.{}.{}", entry.name, option.name), choice.own.of(entry.name, option));

  const NetworkOptions network = network_options(config, {.kind = DeviceKind::cuda, .index = 3});
  tell("network.device", to_string(network.device));
  tell("network.precision", name_of(network.precision, {"fp32", "tf32", "bf16", "fp16", "auto"}));
  tell("network.seed", network.seed);
  tell("network.mean", network.mean);
  tell("network.deviation", network.deviation);
  tell("network.crop_padding", network.augmentation.crop_padding);
  tell("network.horizontal_flip", network.augmentation.horizontal_flip);
  const ColorJitter& color = network.augmentation.color;
  tell("network.color",
       fmt::format("{} {} {} {}", color.brightness, color.contrast, color.saturation, color.hue));
  tell("network.cutout", network.augmentation.cutout);
  tell("network.random_erasing", network.augmentation.random_erasing);
  tell("network.mixup", network.augmentation.mixup);
  tell("network.cutmix", network.augmentation.cutmix);
  tell("network.label_smoothing", network.label_smoothing);
  tell("network.recompute", network.recompute == Recompute::nothing ? "none" : described(network.recompute));

  tell("kernels.by", name_of(kernel_choices(config.kernels).by(), {"name", "time"}));
  KernelChoices kernels = kernel_choices(config.kernels);
  const std::vector<std::string> candidates = {"direct", "winograd", "tiled winograd"};
  tell("kernels.chosen", kernels.choose("key", {.names = candidates}).value());
  tell("kernels.cache", kernel_cache_folder(config.kernels).string());

  const BucketOptions buckets = bucket_options(config);
  tell("buckets.first", buckets.first_bytes);
  tell("buckets.middle", buckets.middle_bytes);
  tell("buckets.last", buckets.last_bytes);
  tell("buckets.overlap", buckets.overlap);
  tell("buckets.micro_batches", buckets.micro_batches);
  tell("buckets.along_tree", buckets.along_tree);
  tell("buckets.sum_type", words_of(buckets.sum_type)[static_cast<std::size_t>(buckets.sum_type)]);
  tell("buckets.delayed", buckets.delayed);
  tell("buckets.one_by_one", buckets.one_by_one);
  tell("buckets.exchange", buckets.exchange.describe());
  std::string rules;
  for (const CodecRule& each : buckets.codecs.rules)
    rules += fmt::format("{}={} ", each.pattern, each.choice.describe());
  tell("buckets.rules", rules);
  tell("buckets.within_node", buckets.codecs.compress_within_node);
  std::string codecs;
  for (const ExchangeChoice& each : buckets.codecs.candidates) codecs += fmt::format("{} ", each.kind->name);
  tell("buckets.candidates", codecs);
  tell("check", name_of(config.check, {"off", "plan", "step", "collective"}));
  tell("communication_niceness", config.communication_niceness);
  tell("between_nodes", name_of(config.between_nodes, {"auto", "direct", "halving", "mpi"}));

  const DeviceCommunicatorOptions& device = config.device_communicator;
  tell("device.min_ctas", device.min_ctas);
  tell("device.max_ctas", device.max_ctas);
  tell("device.nvls_ctas", device.nvls_ctas);
  tell("device.ctas_beside_compute", device.ctas_beside_compute);
  tell("device.kernel_times", device.kernel_times);
  tell("device.cga_cluster_size", device.cga_cluster_size);
  tell("device.cta_policy", name_of(device.cta_policy, {"default", "efficiency", "zero"}));
  tell("device.traffic_class", device.traffic_class);
  tell("device.memory", name_of(device.memory, {"window", "registered", "plain"}));

  if (config.optimizer.name == "sgd") {
    const SgdOptions sgd = sgd_options(config.optimizer);
    tell("sgd.momentum", sgd.momentum);
    tell("sgd.weight_decay", sgd.weight_decay);
    tell("sgd.nesterov", sgd.nesterov);
    tell("sgd.decay_norm_and_bias", sgd.decay_norm_and_bias);
  } else if (config.optimizer.name == "adamw") {
    const AdamWOptions adamw = adamw_options(config.optimizer);
    tell("adamw.beta1", adamw.beta1);
    tell("adamw.beta2", adamw.beta2);
    tell("adamw.epsilon", adamw.epsilon);
    tell("adamw.weight_decay", adamw.weight_decay);
    tell("adamw.decay_norm_and_bias", adamw.decay_norm_and_bias);
  } else {
    const LarsOptions lars = lars_options(config.optimizer);
    tell("lars.momentum", lars.momentum);
    tell("lars.weight_decay", lars.weight_decay);
    tell("lars.trust_coefficient", lars.trust_coefficient);
    tell("lars.epsilon", lars.epsilon);
  }
  const LossScaleOptions scale = loss_scale_options(config);
  tell("scale.initial", scale.initial);
  tell("scale.interval", scale.rule.interval);

  const TrainerOptions trainer = trainer_options(config);
  tell("trainer.accumulation", trainer.accumulation);
  tell("trainer.epochs", trainer.epochs);
  tell("trainer.max_steps", trainer.max_steps);
  tell("trainer.record_steps", trainer.record_steps);
  tell("trainer.enqueue_every", trainer.enqueue_every);
  tell("trainer.cross_barrier", trainer.cross_barrier);
  tell("trainer.clip_norm", trainer.clip_norm);
  tell("trainer.ema_decay", trainer.ema_decay);
  tell("trainer.max_skipped_steps", trainer.max_skipped_steps);
  tell("trainer.norm_every", trainer.norm_every);
  tell("log_every", config.log_every);
  tell("histograms_every", config.histograms_every);
  const MetricChoice& metrics = trainer.metrics;
  tell("trainer.metrics",
       fmt::format("{:d}{:d}{:d}{:d}", metrics.top5, metrics.f1, metrics.confusion, metrics.iou));
  tell("trainer.evaluate_epochs", trainer.evaluate_epochs);
  tell("trainer.evaluate_every", trainer.evaluate_every);
  tell("best.stop_after_epochs", config.best.stop_after_epochs);
  tell("best.stop_min_delta", config.best.stop_min_delta);
  tell("best.by", name_of(config.best.by, {"accuracy", "loss"}));
  tell("best.keep", config.best.keep);
  tell("measure_peak", config.measure_peak);
  tell("busy.below", config.busy.below);
  tell("busy.peak_below", config.busy.peak_below);
  tell("busy.lines", config.busy.lines);
  tell("busy.pause_seconds", config.busy.pause_seconds);
  tell("busy.command", config.busy.command);
  tell("trainer.average_every", trainer.average_every);
  tell("trainer.average_after", trainer.average_after);
  tell("trainer.topology", name_of(trainer.topology, {"all", "ring"}));
  tell("threads", config.threads);
  tell("timeout_seconds", config.timeout_seconds);
  tell("device.device", config.device.device);
  tell("device.may_share", config.device.share_device);
  tell("device.memory_gib", config.device.memory_gib);
  tell("device.near_cores", config.device.near_cores);
  tell("run_dir", config.run_dir);
  tell("check_every", config.check_every);
  tell("monitor_seconds", config.monitor_seconds);
  tell("prometheus.dir", config.prometheus.dir);
  tell("prometheus.address", config.prometheus.address);
  tell("price_per_kwh", config.price_per_kwh);
  tell("profile.wait", config.profile.wait);
  tell("profile.warmup", config.profile.warmup);
  tell("profile.active", config.profile.active);
  tell("profile.repeat", config.profile.repeat);
  tell("profile.dir", config.profile.dir);
  tell("checkpoints.every", config.checkpoints.every);
  tell("checkpoints.minutes", config.checkpoints.minutes);
  tell("checkpoints.keep", config.checkpoints.keep);
  tell("checkpoints.grace_seconds", config.checkpoints.grace_seconds);
  tell("checkpoints.errors", name_of(config.checkpoints.errors, {"warn", "stop"}));

  const Schedule schedule = make_schedule(config.schedule, config.trainer.epochs,
                                          [](std::int64_t epoch) { return epoch * kStepsPerEpoch; });
  tell("schedule.kind", schedule.kind.name);
  tell("schedule.base", schedule.base);
  tell("schedule.scaled", scaled_rate(config.schedule, 512));
  tell("schedule.total_steps", schedule.total_steps);
  tell("schedule.warmup_steps", schedule.warmup_steps);
  tell("schedule.milestones", schedule.milestones);
  tell("schedule.gamma", schedule.gamma);
  tell("schedule.final_fraction", schedule.final_fraction);
  return all;
}

// "option=value" for every option in `other` that differs from the base.
std::set<std::string> changes(const std::map<std::string, std::string>& base,
                              const std::map<std::string, std::string>& other) {
  std::set<std::string> found;
  for (const auto& [option, value] : other) {
    const auto before = base.find(option);
    if (before == base.end() || before->second != value) found.insert(option + '=' + value);
  }
  return found;
}

struct Case {
  std::string setting;
  std::set<std::string> changed;
  std::vector<std::string> also = {};  // set in the base, too
};

Config config_with(std::vector<std::string> settings) {
  const std::vector<std::string> base = {"train.epochs=10", "schedule.warmup_epochs=0",
                                         "optimizer.learning_rate=0.25"};
  settings.insert(settings.begin(), base.begin(), base.end());
  return load_config("fashion_mnist_mlp", settings);
}

const std::vector<std::string> kAdamW = {"optimizer.name=adamw"}, kLars = {"optimizer.name=lars"},
                               kFp16 = {"train.precision=fp16"};

std::vector<Case> cases() {
  return {
      {"model.name=resnet50", {"choice.name=resnet50"}},
      {"model.batch_norm=false", {"choice.batch_norm=false"}},
      {"model.stem=cifar", {"choice.stem=cifar"}},
      {"model.stem=imagenet", {"choice.stem=imagenet"}},
      {"model.zero_init_residual=true", {"choice.zero_init_residual=true"}},
      {"model.sync_batch_norm=true", {"choice.sync_batch_norm=true"}},
      {"model.dropout=0.25", {"choice.dropout=0.25"}},
      {"model.reset_head=true", {"choice.reset_head=true"}},
      {"model.reset_head=auto", {"choice.reset_head=auto"}},
      {"model.freeze=[\"conv1\", \"layer1.0\"]", {"choice.freeze=conv1 layer1.0"}},
      {"run.export_precision=fp16", {"export_precision=fp16"}},
      {"run.export_precision=bf16", {"export_precision=bf16"}},
      {"model.loss=binary_cross_entropy", {"choice.loss=binary_cross_entropy"}},
      {"model.layer=[{ kind = \"dense\", features = 4 }]",
       {"choice.layers=[{ kind = \"dense\", name = \"fc1\", features = 4 }]"},
       {"model.name=layers", "model.layer=[{ kind = \"dense\" }]"}},
      {"model.mlp.width=64", {"choice.mlp.width=64"}},
      {"model.mlp.depth=3", {"choice.mlp.depth=3"}},
      {"model.cnn.width=16", {"choice.cnn.width=16"}},
      {"model.cnn.depth=3", {"choice.cnn.depth=3"}},
      {"model.cnn.kernel=5", {"choice.cnn.kernel=5"}},
      {"model.cnn.hidden=64", {"choice.cnn.hidden=64"}},
      {"data.format=image_folder", {"dataset.format=image_folder"}},
      {"data.format=cifar_binary", {"dataset.format=cifar_binary"}},
      {"data.format=synthetic", {"dataset.format=synthetic"}},
      {"data.format=drug_trial", {"dataset.format=drug_trial"}},
      {"data.format=tfrecord", {"dataset.format=tfrecord"}},
      {"data.format=webdataset", {"dataset.format=webdataset"}},
      {"data.format=records", {"dataset.format=records"}},
      {"data.format=csv", {"dataset.format=csv"}},
      {"data.format=hdf5", {"dataset.format=hdf5"}},
      {"data.format=masks", {"dataset.format=masks"}},
      {"data.format=shapes", {"dataset.format=shapes"}},
      {"data.masks.classes=21", {"dataset.mask_classes=21"}},
      {"data.masks.ignore_index=0", {"dataset.ignore_index=0"}},
      {"model.unet.width=32", {"choice.unet.width=32"}},
      {"model.unet.depth=4", {"choice.unet.depth=4"}},
      {"data.hdf5.images=train/x", {"dataset.images=train/x"}},
      {"data.hdf5.labels=train/y", {"dataset.labels=train/y"}},
      {"data.test_split=val", {"dataset.test_split=val"}},
      {"data.channels=3", {"dataset.channels=3"}},
      {"data.exif_orientation=ignore", {"dataset.exif_orientation=ignore"}},
      {"data.recursive=false", {"dataset.recursive=false"}},
      {"data.csv.delimiter=comma", {"dataset.delimiter=comma"}},
      {"data.csv.delimiter=semicolon", {"dataset.delimiter=semicolon"}},
      {"data.csv.delimiter=tab", {"dataset.delimiter=tab"}},
      {"data.csv.header=yes", {"dataset.header=yes"}},
      {"data.csv.header=no", {"dataset.header=no"}},
      {"data.tfrecord.image=photo", {"dataset.tfrecord=photoauto"}},
      {"data.tfrecord.label=kind", {"dataset.tfrecord=autokind"}},
      {"data.csv.label=species", {"dataset.label=species"}},
      {"data.csv.ignore=id, name", {"dataset.ignore=id, name"}},
      {"data.csv.scaling=none", {"dataset.scaling=none"}},
      {"data.csv.scaling=min_max", {"dataset.scaling=min_max"}},
      {"data.validation_share=0.25", {"dataset.validation_share=0.25"}},
      {"data.resize=64", {"dataset.resize=64"}},
      {"data.random_resized_crop=true", {"dataset.random_crop=true"}, {"data.resize=64"}},
      {"data.center_crop=0.875", {"dataset.center_share=0.875"}},
      {"data.on_error=stop", {"dataset.on_error=stop", "loader.on_error=stop"}},
      {"data.path=/elsewhere", {"dataset.path=/elsewhere"}},
      {"data.synthetic.height=48", {"dataset.shape=48 32 3"}},
      {"data.synthetic.width=48", {"dataset.shape=32 48 3"}},
      {"data.synthetic.channels=4", {"dataset.shape=32 32 4"}},
      {"data.synthetic.classes=12", {"dataset.classes=12"}},
      {"data.synthetic.train_samples=77", {"dataset.train=77"}},
      {"data.synthetic.test_samples=78", {"dataset.test=78"}},
      {"data.mean=[0.5]", {"network.mean=[0.5]"}},
      {"data.deviation=[0.75]", {"network.deviation=[0.75]"}},
      {"data.crop_padding=3", {"network.crop_padding=3"}},
      {"data.horizontal_flip=true", {"network.horizontal_flip=true"}},
      {"data.brightness=0.25", {"network.color=0.25 0 0 0"}},
      {"data.contrast=0.5", {"network.color=0 0.5 0 0"}},
      {"data.saturation=0.5", {"network.color=0 0 0.5 0"}},
      {"data.hue=0.125", {"network.color=0 0 0 0.125"}},
      {"data.cutout=8", {"network.cutout=8"}},
      {"data.random_erasing=0.25", {"network.random_erasing=0.25"}},
      {"data.mixup=0.5", {"network.mixup=0.5"}},
      {"data.cutmix=1", {"network.cutmix=1"}},
      {"data.tail=carry", {"loader.tail=carry"}},
      {"data.tail=repeat", {"loader.tail=repeat"}},
      {"data.tail=exact", {"loader.tail=exact"}},
      {"data.augment_on=host", {"augment_on=host"}},
      {"data.augment_on=device", {"augment_on=device"}},
      {"data.loader=stream", {"loader_mode=stream"}},
      {"data.loader=preload", {"loader_mode=preload"}},
      {"data.loader=device", {"loader_mode=device"}},
      {"data.preload=before", {"preload_time=before"}},
      {"data.loader_threads=7", {"loader.threads=7"}},
      {"data.verify=all", {"verify.extent=all"}},
      {"data.verify=none", {"verify.extent=none"}},
      {"train.batch=48", {"loader.batch=48"}},
      {"train.accumulation=6",
       {"loader.accumulation=6", "trainer.accumulation=6", "buckets.micro_batches=6"}},
      {"train.seed=99", {"loader.seed=99", "network.seed=99"}},
      {"train.reproducible=true", {"buckets.along_tree=true"}},
      {"comm.sum_type=gradients", {"buckets.sum_type=gradients"}},
      {"train.recompute=true", {"network.recompute=of blocks"}},
      {"train.recompute=5", {"network.recompute=of segments of 5 layers"}},
      {"train.label_smoothing=0.125", {"network.label_smoothing=0.125"}},
      {"train.precision=tf32", {"network.precision=tf32"}},
      {"train.precision=bf16", {"network.precision=bf16"}},
      {"train.precision=fp16", {"network.precision=fp16", "scale.initial=65536", "scale.interval=2000"}},
      {"train.precision=auto", {"network.precision=auto"}},
      {"train.loss_scale=512", {}},
      {"train.loss_scale=512", {"scale.initial=512"}, kFp16},
      {"train.loss_scale_interval=5", {"scale.interval=5"}, kFp16},
      {"train.epochs=20", {"trainer.epochs=20", "schedule.total_steps=2000"}},
      {"train.steps=7", {"trainer.max_steps=7"}},
      {"train.until_epoch=3", {"trainer.epochs=3"}, {"train.epochs=20"}},
      {"train.max_skipped_steps=3", {"trainer.max_skipped_steps=3"}},
      {"train.average_every=8", {"trainer.average_every=8"}},
      {"train.average_every=1", {}},
      {"train.staleness=1", {"buckets.delayed=true"}},
      {"train.average_after=100", {"trainer.average_after=100"}},
      {"train.ema_decay=0.75", {"trainer.ema_decay=0.75"}},
      {"train.cuda_graph=false", {"trainer.record_steps=false"}},
      {"train.enqueue_every=50", {"trainer.enqueue_every=50"}},
      {"train.threads=3", {"threads=3"}},
      {"optimizer.name=adamw",
       {"adamw.beta1=0.9", "adamw.beta2=0.999", "adamw.epsilon=1e-08", "adamw.weight_decay=0",
        "adamw.decay_norm_and_bias=true"}},
      {"optimizer.name=lars",
       {"lars.momentum=0.9", "lars.weight_decay=0", "lars.trust_coefficient=0.001", "lars.epsilon=1e-08"}},
      {"optimizer.learning_rate=0.5", {"schedule.base=0.5", "schedule.scaled=0.5"}},
      {"optimizer.scale_rate=linear", {"schedule.scaled=0.5"}},
      {"optimizer.scale_rate=sqrt", {"schedule.scaled=0.5"}, {"optimizer.scale_batch=128"}},
      {"optimizer.scale_batch=128", {"schedule.scaled=1"}, {"optimizer.scale_rate=linear"}},
      {"optimizer.momentum=0.5", {"sgd.momentum=0.5"}},
      {"optimizer.momentum=0.5", {"lars.momentum=0.5"}, kLars},
      {"optimizer.momentum=0.5", {}, kAdamW},
      {"optimizer.nesterov=true", {"sgd.nesterov=true"}},
      {"optimizer.weight_decay=0.25", {"sgd.weight_decay=0.25"}},
      {"optimizer.weight_decay=0.25", {"adamw.weight_decay=0.25"}, kAdamW},
      {"optimizer.weight_decay=0.25", {"lars.weight_decay=0.25"}, kLars},
      {"optimizer.decay_norm_and_bias=false", {"sgd.decay_norm_and_bias=false"}},
      {"optimizer.decay_norm_and_bias=false", {"adamw.decay_norm_and_bias=false"}, kAdamW},
      {"optimizer.decay_norm_and_bias=false", {}, kLars},
      {"optimizer.beta1=0.25", {"adamw.beta1=0.25"}, kAdamW},
      {"optimizer.beta2=0.25", {"adamw.beta2=0.25"}, kAdamW},
      {"optimizer.epsilon=0.25", {"adamw.epsilon=0.25"}, kAdamW},
      {"optimizer.epsilon=0.25", {"lars.epsilon=0.25"}, kLars},
      {"optimizer.trust_coefficient=0.25", {"lars.trust_coefficient=0.25"}, kLars},
      {"optimizer.clip_norm=0.5", {"trainer.clip_norm=0.5"}},
      {"schedule.name=step", {"schedule.kind=step"}, {"schedule.milestones=[2]"}},
      {"schedule.name=cosine", {"schedule.kind=cosine"}},
      {"schedule.warmup_epochs=1.5", {"schedule.warmup_steps=150"}},
      {"schedule.milestones=[2, 3.5]", {"schedule.milestones=[200, 350]"}},
      {"schedule.gamma=0.25", {"schedule.gamma=0.25"}},
      {"schedule.final_fraction=0.25", {"schedule.final_fraction=0.25"}},
      {"comm.cross_barrier=true",
       {"buckets.middle=1048576", "buckets.one_by_one=true", "trainer.cross_barrier=true"}},
      {"comm.exchange=sharded", {"buckets.exchange=sharded"}},
      {"comm.overlap=false", {"buckets.overlap=false"}},
      {"comm.bucket_mib=[2, 3, 0.5]",
       {"buckets.first=2097152", "buckets.middle=3145728", "buckets.last=524288"}},
      {"comm.max_ctas=9", {"device.max_ctas=9"}},
      {"comm.min_ctas=9", {"device.min_ctas=9"}},
      {"comm.nvls_ctas=9", {"device.nvls_ctas=9"}},
      {"comm.ctas_beside_compute=9", {"device.ctas_beside_compute=9"}},
      {"comm.kernel_times=true", {"device.kernel_times=true"}, {"train.cuda_graph=false"}},
      {"comm.cga_cluster_size=2", {"device.cga_cluster_size=2"}},
      {"comm.cta_policy=zero", {"device.cta_policy=zero"}},
      {"comm.traffic_class=104", {"device.traffic_class=104"}},
      {"comm.gradient_memory=plain", {"device.memory=plain"}},
      {"comm.check=off", {"check=off"}},
      {"comm.between_nodes=halving", {"between_nodes=halving"}},
      {"comm.topology=ring", {"trainer.topology=ring"}},
      {"comm.priority=-5", {"communication_niceness=-5"}},
      {"comm.timeout_seconds=60", {"timeout_seconds=60"}},
      {"comm.codec=fp16", {"buckets.exchange=fp16"}},
      {"comm.int8.stochastic=1",
       {"buckets.exchange=int8 stochastic=1 error_feedback=1"},
       {"comm.codec=int8"}},
      {"comm.int8.error_feedback=0",
       {"buckets.exchange=int8 stochastic=0 error_feedback=0"},
       {"comm.codec=int8"}},
      {"comm.sign.error_feedback=0", {"buckets.exchange=sign error_feedback=0"}, {"comm.codec=sign"}},
      {"comm.powersgd.rank=4",
       {"buckets.exchange=powersgd rank=4 start_step=100 error_feedback=1"},
       {"comm.codec=powersgd"}},
      {"comm.powersgd.start_step=10",
       {"buckets.exchange=powersgd rank=2 start_step=10 error_feedback=1"},
       {"comm.codec=powersgd"}},
      {"comm.powersgd.error_feedback=0",
       {"buckets.exchange=powersgd rank=2 start_step=100 error_feedback=0"},
       {"comm.codec=powersgd"}},
      {"comm.topk.density=0.1",
       {"buckets.exchange=topk density=0.1 warmup_steps=500 warmup_density=0.125 momentum_correction=1 "
        "error_feedback=1"},
       {"comm.codec=topk"}},
      {"comm.topk.warmup_steps=10",
       {"buckets.exchange=topk density=0.01 warmup_steps=10 warmup_density=0.125 momentum_correction=1 "
        "error_feedback=1"},
       {"comm.codec=topk"}},
      {"comm.topk.warmup_density=0.1",
       {"buckets.exchange=topk density=0.01 warmup_steps=500 warmup_density=0.1 momentum_correction=1 "
        "error_feedback=1"},
       {"comm.codec=topk"}},
      {"comm.topk.momentum_correction=0",
       {"buckets.exchange=topk density=0.01 warmup_steps=500 warmup_density=0.125 momentum_correction=0 "
        "error_feedback=1"},
       {"comm.codec=topk"}},
      {"comm.topk.error_feedback=0",
       {"buckets.exchange=topk density=0.01 warmup_steps=500 warmup_density=0.125 momentum_correction=1 "
        "error_feedback=0"},
       {"comm.codec=topk"}},
      {"comm.dgc.density=0.01",
       {"buckets.exchange=dgc density=0.01 warmup_steps=1000 warmup_density=0.125 clip=0"},
       {"comm.codec=dgc"}},
      {"comm.dgc.warmup_steps=10",
       {"buckets.exchange=dgc density=0.001 warmup_steps=10 warmup_density=0.125 clip=0"},
       {"comm.codec=dgc"}},
      {"comm.dgc.warmup_density=0.1",
       {"buckets.exchange=dgc density=0.001 warmup_steps=1000 warmup_density=0.1 clip=0"},
       {"comm.codec=dgc"}},
      {"comm.dgc.clip=1",
       {"buckets.exchange=dgc density=0.001 warmup_steps=1000 warmup_density=0.125 clip=1"},
       {"comm.codec=dgc"}},
      {"comm.codec_for=fc.*=none", {"buckets.rules=fc.*=none "}},
      {"comm.codec_limit=int8", {"buckets.candidates=bf16 int8 "}},
      {"comm.compress_within_node=true", {"buckets.within_node=true"}},
      {"kernels.choose=direct", {"kernels.by=name"}},
      {"kernels.choose=winograd", {"kernels.by=name", "kernels.chosen=1"}},
      {"kernels.choose=tiled winograd", {"kernels.by=name", "kernels.chosen=2"}},
      {"kernels.cache=none", {"kernels.cache="}},
      {"kernels.cache=/kept", {"kernels.cache=/kept"}},
      {"world.device=cpu", {"device.device=cpu"}},
      {"world.share_device=true", {"device.may_share=true"}},
      {"world.memory_limit=1.5", {"device.memory_gib=1.5"}},
      {"world.near_cores=false", {"device.near_cores=false"}},
      {"run.dir=there", {"run_dir=there"}},
      {"run.checkpoint_every=50", {"checkpoints.every=50"}},
      {"run.checkpoint_minutes=7.5", {"checkpoints.minutes=7.5"}},
      {"run.log_every=7", {"log_every=7", "trainer.norm_every=7"}},
      {"run.histograms=2", {"histograms_every=2"}},
      {"run.busy_below=0.5", {"busy.below=0.5"}},
      {"run.peak_below=0.25", {"busy.peak_below=0.25"}},
      {"run.busy_lines=7", {"busy.lines=7"}},
      {"run.event_pause_seconds=5", {"busy.pause_seconds=5"}},
      {"run.event_command=\"mail\"", {"busy.command=mail"}},
      {"run.metrics=top5", {"trainer.metrics=1000"}},
      {"run.metrics=confusion, f1", {"trainer.metrics=0110"}},
      {"run.metrics=iou", {"trainer.metrics=0001"}},
      {"run.evaluate_every=3", {"trainer.evaluate_epochs=3"}},
      {"run.stop_after_epochs=5", {"best.stop_after_epochs=5"}},
      {"run.stop_metric=loss", {"best.by=loss"}},
      {"run.stop_min_delta=0.25", {"best.stop_min_delta=0.25"}},
      {"run.keep_best=true", {"best.keep=true"}},
      {"run.metrics_every=7", {"trainer.evaluate_every=7"}},
      {"run.measure_peak=false", {"measure_peak=false"}},
      {"run.keep=5", {"checkpoints.keep=5"}},
      {"run.check_every=7", {"check_every=7"}},
      {"run.monitor_seconds=0.5", {"monitor_seconds=0.5"}},
      {"run.prometheus_dir=there", {"prometheus.dir=there"}},
      {"run.prometheus_address=\"0.0.0.0:9464\"", {"prometheus.address=0.0.0.0:9464"}},
      {"run.price_per_kwh=0.3", {"price_per_kwh=0.3"}},
      {"run.grace_seconds=20", {"checkpoints.grace_seconds=20"}},
      {"run.checkpoint_errors=stop", {"checkpoints.errors=stop"}},
      {"profile.wait=3", {"profile.wait=3"}},
      {"profile.warmup=2", {"profile.warmup=2"}},
      {"profile.active=4", {"profile.active=4"}},
      {"profile.repeat=5", {"profile.repeat=5"}},
      {"profile.dir=there", {"profile.dir=there"}},
  };
}

TEST(EngineOptions, EachKeyChangesOnlyItsOption) {
  for (const Case& wanted : cases()) {
    std::vector<std::string> settings = wanted.also;
    const auto base = told(config_with(settings));
    settings.push_back(wanted.setting);
    EXPECT_EQ(changes(base, told(config_with(settings))), wanted.changed)
        << wanted.setting << " with " << fmt::format("{}", wanted.also);
  }
}

TEST(EngineOptions, LocalSgdAndLateGradientsRefuseCodecsThatAddMomentum) {
  for (const char* codec : {"comm.codec=dgc", "comm.codec_for=fc.*=dgc"}) {
    EXPECT_NO_THROW(bucket_options(config_with({codec, "train.average_every=1", "train.staleness=0"})));
    expect_parts(message_of<ConfigError>([&] {
                   bucket_options(config_with({codec, "train.average_every=4"}));
                 }),
                 {"train.average_every = 4", "comm.codec", "\"dgc\""});
    expect_parts(message_of<ConfigError>([&] {
                   bucket_options(config_with({codec, "train.staleness=1"}));
                 }),
                 {"train.staleness = 1", "comm.codec", "\"dgc\""});
  }
}

// The mean of the ranks' sent values is not the mean of gradients.
TEST(EngineOptions, ClippingRefusesCodecsThatAddMomentum) {
  for (const char* codec : {"comm.codec=dgc", "comm.codec_for=fc.*=dgc"}) {
    EXPECT_NO_THROW(bucket_options(config_with({codec})));
    expect_parts(message_of<ConfigError>([&] {
                   bucket_options(config_with({codec, "optimizer.clip_norm=2"}));
                 }),
                 {"optimizer.clip_norm = 2", "comm.codec", "\"dgc\"", "comm.dgc.clip"});
  }
}

// The codec applies the momentum instead of the optimizer.
TEST(EngineOptions, MomentumGoesToCodecsThatAddIt) {
  const BucketOptions options =
      bucket_options(config_with({"comm.codec=dgc", "optimizer.momentum=0.8", "optimizer.nesterov=true"}));
  EXPECT_EQ(options.momentum.momentum, 0.8);
  EXPECT_TRUE(options.momentum.nesterov);
  for (const char* name : {"adamw", "lars"}) {
    for (const char* codec : {"comm.codec=dgc", "comm.codec_for=fc.*=dgc"}) {
      const std::vector<std::string> settings = {codec, fmt::format("optimizer.name={}", name)};
      expect_parts(message_of<ConfigError>([&] { bucket_options(config_with(settings)); }),
                   {"comm.codec", "\"dgc\"", "optimizer.name", fmt::format("\"{}\"", name), "\"sgd\""});
    }
  }
}

// If another optimizer applies momentum, if parameter differences are exchanged, or if the trial chooses
// codecs during training, topk works without momentum.
TEST(EngineOptions, TopKCorrectsTheMomentumOfSgdOnly) {
  const auto corrects = [](const std::vector<std::string>& settings) {
    const BucketOptions options = bucket_options(config_with(settings));
    const bool everywhere = adds_momentum(options.exchange, options.momentum);
    return everywhere || (!options.codecs.rules.empty() &&
                          adds_momentum(options.codecs.rules.front().choice, options.momentum));
  };
  for (const char* codec : {"comm.codec=topk", "comm.codec_for=fc.*=topk"}) {
    EXPECT_TRUE(corrects({codec}));
    EXPECT_FALSE(corrects({codec, "comm.topk.momentum_correction=0"}));
    EXPECT_FALSE(corrects({codec, "optimizer.momentum=0"}));
    EXPECT_FALSE(corrects({codec, "optimizer.name=adamw"}));
    EXPECT_FALSE(corrects({codec, "optimizer.clip_norm=1"}));
    EXPECT_FALSE(corrects({codec, "train.average_every=4"}));
    EXPECT_FALSE(corrects({codec, "train.staleness=1"}));
  }
  const BucketOptions options = bucket_options(config_with({"comm.codec=auto", "comm.codec_limit=topk"}));
  ASSERT_FALSE(options.codecs.candidates.empty());
  EXPECT_EQ(options.codecs.candidates.back().kind, &kTopKCodec);
  for (const ExchangeChoice& each : options.codecs.candidates)
    EXPECT_FALSE(adds_momentum(each, options.momentum));
}

TEST(EngineOptions, EveryKeyHasACase) {
  std::set<std::string> covered;
  for (const Case& wanted : cases()) covered.insert(wanted.setting.substr(0, wanted.setting.find('=')));
  for (const detail::Key& key : detail::keys()) {
    EXPECT_EQ(covered.count(key.name), 1u)
        << key.name << ": add what it changes to cases() in engine_options_test.cpp";
  }
}

TEST(EngineOptions, EveryWordOfEveryKeyHasACase) {
  std::set<std::string> tried;
  for (const Case& wanted : cases()) tried.insert(wanted.setting);
  for (const char* key :
       {"model.stem", "data.tail", "train.precision", "optimizer.name", "optimizer.scale_rate",
        "schedule.name", "kernels.choose", "data.format", "data.on_error", "data.verify", "data.loader",
        "data.csv.scaling", "data.csv.delimiter", "data.csv.header", "data.exif_orientation"}) {
    const auto& words = std::ranges::find(detail::keys(), key, &detail::Key::name)->words;
    ASSERT_FALSE(words.empty()) << key;
    for (const std::string& word : words) {
      const std::string setting = fmt::format("{}={}", key, word);
      if (tried.contains(setting)) continue;  // some words need a second setting
      EXPECT_TRUE(changes(told(config_with({})), told(config_with({setting}))).empty()) << setting;
    }
  }
}

TEST(EngineOptions, DeviceIsPassedToTheEngine) {
  const auto all = told(config_with({}));
  EXPECT_EQ(all.at("loader.device"), "cuda:3");
  EXPECT_EQ(all.at("network.device"), "cuda:3");
  EXPECT_EQ(all.at("kernels.cache"), default_kernel_cache().string());
}

// Advice suggests only what the configuration then accepts.
TEST(EngineOptions, FeatureThatWouldConflictCannotBeTurnedOn) {
  EXPECT_TRUE(could_turn_on(Feature::cross_barrier, config_with({})));
  for (const char* setting : {"optimizer.clip_norm=1", "train.ema_decay=0.9", "train.staleness=1"})
    EXPECT_FALSE(could_turn_on(Feature::cross_barrier, config_with({setting}))) << setting;
}

}  // namespace
}  // namespace lockstep
