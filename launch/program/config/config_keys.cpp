// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_keys.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/codecs/auto_exchange.h"

namespace lockstep::detail {
namespace {

// Products of two of these, and of one with the samples of any dataset, stay below 2^63.
constexpr double kMostSamples = 1 << 20;  // of a batch, and micro-batches of a step
constexpr double kMostEpochs = 1'000'000;
constexpr double kMostSteps = 1e12;
constexpr double kMostProfiledSteps = 10'000;  // of a cycle; they are kept in memory
constexpr double kMostThreads = 4096;
constexpr double kMostPixels = 4096;
constexpr double kMostSyntheticSamples = 2147483647;  // a SampleId's index
constexpr double kMostMebibytes = 1 << 16;
// Bounds within which fp32 results stay finite and nonzero.
constexpr double kLargest = 1e30;
constexpr double kSmallest = 1e-30;

constexpr Range kAboveZero = {.least = 0, .most = kLargest, .above_least = true};
constexpr Range kFromZero = {.least = 0, .most = kLargest};
constexpr Range kSamples = {.least = 1, .most = kMostSamples};
constexpr Range kColorFactor = {.least = 0, .most = 100};
constexpr Range kSide = {.least = 1, .most = kMostPixels};
constexpr Range kEpochs = {.least = 0, .most = kMostEpochs};
constexpr Range kFromZeroBelowOne = {.least = 0, .most = 1, .below_most = true};
constexpr Range kUnit = {.least = 0, .most = 1};

template <typename Entry>
const Entry& entry_of(const Entry& entry) {
  return entry;
}
const ExchangeKind& entry_of(const ExchangeKind* kind) { return *kind; }

template <typename Entry>
std::vector<std::string> names_in(const std::vector<Entry>& table) {
  std::vector<std::string> names;
  for (const Entry& entry : table) names.emplace_back(entry_of(entry).name);
  return names;
}

std::string codec_meaning(const Registry& registry) {
  std::string text = "how gradients travel between nodes";
  for (const ExchangeKind* kind : registry.exchanges)
    text += fmt::format("; {}: {}", kind->name, kind->meaning);
  return text;
}

// Adds the keys of a table's entries after the keys of their section.
template <typename Entry>
void add_own_keys(std::vector<Key>& keys, const std::string& section, const std::vector<Entry>& table,
                  OwnNumbers& (*own)(Config& config)) {
  const auto last = std::ranges::find(keys.rbegin(), keys.rend(), section, &Key::section);
  auto end = last.base();
  for (const Entry& each : table) {
    const std::string entry(entry_of(each).name);
    for (const NumberOption& option : entry_of(each).options) {
      end = std::next(keys.insert(
          end, {.name = fmt::format("{}.{}.{}", section, entry, option.name),
                .member = [=](Config& config) -> Member { return &own(config).at(entry, option); },
                .description = fmt::format("{}: {}", entry, option.meaning),
                .range = {.least = option.least, .most = option.most},
                .whole = option.whole}));
    }
  }
}

#define MEMBER(path) [](Config& config) -> Member { return &config.path; }

}  // namespace

std::vector<Key> keys_of(const Registry& registry) {
  std::vector<Key> table = {
      {"model.name", MEMBER(model.name), "network", {}, names_in(registry.networks)},
      {"model.batch_norm", MEMBER(model.batch_norm), "batch normalisation in the cnn"},
      {"model.stem", MEMBER(model.stem),
       "first layers of resnets and mobilenet_v2, for small or large images; auto: cifar up to 64 high"},
      {"model.zero_init_residual", MEMBER(model.zero_init_residual),
       "resnets: last gamma of each block starts at 0"},
      {"model.sync_batch_norm", MEMBER(model.sync_batch_norm),
       "batch norm takes its moments over the batches of all ranks, which then wait for each other in every "
       "layer"},
      {"model.dropout",
       MEMBER(model.dropout),
       "share of features dropped before classifying; -1: the network's own (vgg11_bn 0.5, mobilenet_v2 0.2)",
       {.least = -1, .most = 1, .below_most = true}},
      {"model.freeze", MEMBER(model.freeze),
       "layers that are not trained, by the beginnings of their names (\"layer1\", \"layer2.0\"): parameters "
       "stay "
       "as they are, and batch norm normalises with its running statistics and leaves them alone"},
      {"model.reset_head", MEMBER(model.reset_head),
       "with --init: the last linear layer, which tells the classes, is not read but starts anew, for other "
       "classes than the file's"},
      {"data.format", MEMBER(dataset.format), "file format of the dataset", {}, names_in(registry.formats)},
      {"data.path", MEMBER(dataset.path), "folder of the dataset"},
      {"data.test_split", MEMBER(dataset.test_split),
       "what is tested with: the folder, or a word in names of files, such as val; auto: the first that has "
       "labelled samples of test, testing, val, valid, validation, dev and eval"},
      {"data.channels",
       MEMBER(dataset.images.channels),
       "image files: 1 (grayscale) or 3 (RGB), which all are converted to; 0: what most of the training "
       "images "
       "have that are looked at",
       {0, 3}},
      {"data.exif_orientation", MEMBER(dataset.images.exif_orientation),
       "image files: turn and mirror an image as its EXIF says, or leave it as it is stored"},
      {"data.recursive", MEMBER(dataset.recursive),
       "image_folder: read folders within those of classes, too"},
      {"data.synthetic.height", MEMBER(dataset.synthetic.height),
       "synthetic: pixels of an image, from top to bottom", kSide},
      {"data.synthetic.width", MEMBER(dataset.synthetic.width),
       "synthetic: pixels of an image, from left to right", kSide},
      {"data.synthetic.channels",
       MEMBER(dataset.synthetic.channels),
       "synthetic: bytes of a pixel",
       {1, 1024}},
      {"data.synthetic.classes",
       MEMBER(dataset.synthetic.classes),
       "synthetic: labels, in turn",
       {1, 1000000}},
      {"data.synthetic.train_samples",
       MEMBER(dataset.synthetic.train_samples),
       "synthetic: images to train with, computed as they are read",
       {1, kMostSyntheticSamples}},
      {"data.synthetic.test_samples",
       MEMBER(dataset.synthetic.test_samples),
       "synthetic: images to test with",
       {1, kMostSyntheticSamples}},
      {"data.csv.delimiter", MEMBER(dataset.csv.delimiter),
       "csv: what stands between cells; auto: what makes the first rows a table of numbers"},
      {"data.csv.header", MEMBER(dataset.csv.header),
       "csv: whether the first row holds the columns' names; auto: what it looks like beside the rows below"},
      {"data.csv.label", MEMBER(dataset.csv.label),
       "csv: the column of labels, by its name or its number from 1 on; auto: the one called label, labels, "
       "class, target or y, or the last"},
      {"data.csv.ignore", MEMBER(dataset.csv.ignore),
       "csv: columns that are no features, by names or numbers with commas between them; none: all others "
       "are"},
      {"data.csv.scaling", MEMBER(dataset.csv.scaling),
       "csv: numbers as they are, or by column made to lie in [0, 1], or to have mean 0 and deviation 1, in "
       "the training set"},
      {"data.tfrecord.image", MEMBER(dataset.tfrecord.image),
       "tfrecord: the feature that holds the image; auto: image/encoded or image"},
      {"data.tfrecord.label", MEMBER(dataset.tfrecord.label),
       "tfrecord: the feature that holds the label; auto: image/class/label, label or class"},
      {"data.hdf5.images", MEMBER(dataset.hdf5.images),
       "hdf5: the array of images, such as group/images; {split} stands for train, and for what the other "
       "split is called; auto: the one called images, image, img, x or data, also beside a word for the "
       "split "
       "(train_set_x, X_train)"},
      {"data.hdf5.labels", MEMBER(dataset.hdf5.labels),
       "hdf5: the array of their labels, in the same file or in another one of the split; auto: the one "
       "called "
       "labels, label, y, targets or target, also beside a word for the split"},
      {"data.validation_share",
       MEMBER(dataset.validation_share),
       "for data without test images: this share of the training images, chosen by their names, is tested "
       "with "
       "and not trained on; 0: none",
       {.least = 0, .most = 1, .below_most = true}},
      {"data.resize",
       MEMBER(dataset.resize.size),
       "every image is made this high and wide; 0: they are left as they are, and must have one size",
       {0, 65536}},
      {"data.random_resized_crop", MEMBER(dataset.resize.random_crop),
       "training images: a random part of each, of 8 % of its area or more, is made that size"},
      {"data.center_crop",
       MEMBER(dataset.resize.center_share),
       "images that are resized otherwise: so much of the shorter side is kept, about the middle",
       {0.01, 1}},
      {"data.mean",
       MEMBER(network.mean),
       "subtracted from pixels in [0, 1], for each channel; []: 0",
       {.least = -1e12, .most = 1e12}},
      {"data.deviation", MEMBER(network.deviation), "divides them, for each channel; []: 1", {1e-12, 1e12}},
      {"data.crop_padding",
       MEMBER(network.augmentation.crop_padding),
       "training images: random windows of their size out of the image with this many black pixels around it",
       {0, kMostPixels}},
      {"data.horizontal_flip", MEMBER(network.augmentation.horizontal_flip),
       "training images: half of them mirrored"},
      {"data.brightness", MEMBER(network.augmentation.color.brightness),
       "training images: brightness times a factor from [1 - this, 1 + this], not below 0", kColorFactor},
      {"data.contrast", MEMBER(network.augmentation.color.contrast),
       "training images: distance from the mean gray times such a factor", kColorFactor},
      {"data.saturation", MEMBER(network.augmentation.color.saturation),
       "training images: distance from the pixel's gray times such a factor", kColorFactor},
      {"data.hue",
       MEMBER(network.augmentation.color.hue),
       "training images: hue turned by up to this share of the circle, either way",
       {0, 0.5}},
      {"data.augment_on", MEMBER(augment_on),
       "whether color, crop and flip are the device's work or that of the loader's threads, with the same "
       "result; auto: the device's, which reads the images in any case"},
      {"data.cutout",
       MEMBER(network.augmentation.cutout),
       "training images: side of a square about a random pixel that is erased; 0: none",
       {0, kMostPixels}},
      {"data.random_erasing",
       MEMBER(network.augmentation.random_erasing),
       "training images: share of those of which a random rectangle, 2 % to 33 % of the image, is erased",
       {.least = 0, .most = 1}},
      {"data.mixup",
       MEMBER(network.augmentation.mixup),
       "training images and labels, in pairs: shares of both, drawn from Beta(alpha, alpha) with this alpha; "
       "0: none",
       {.least = 0, .most = 100}},
      {"data.cutmix",
       MEMBER(network.augmentation.cutmix),
       "the same with a rectangle of the other image; with both, one of them at a time",
       {.least = 0, .most = 100}},
      {"data.tail", MEMBER(loader.tail),
       "samples left over by an epoch's batches: left out, kept for the next epoch, filled up with its "
       "first, or trained as a short batch"},
      {"data.loader", MEMBER(loader_mode),
       "images are read and decoded each time, or decoded once, into memory that the ranks of a node share, "
       "or into the device's; auto: a GPU's where they take a tenth of it at most, shared memory where they "
       "are decoded at all and take a quarter of what is free at most"},
      {"data.loader_threads",
       MEMBER(loader.threads),
       "threads that prepare batches; 0: one, and more, up to the rank's cores, as long as batches are "
       "waited for",
       {0, 64}},
      {"data.on_error", MEMBER(dataset.on_error),
       "an image that cannot be decoded, or a row that cannot be read: is left out and counted, or ends the "
       "job with exit code 65"},
      {"data.verify", MEMBER(verify.extent),
       "before the first step: read the header of every image, decode every image whole, or neither"},
      {"train.batch", [](Config& config) -> Member { return IntegerOrAuto(&config.loader.batch); },
       "samples per rank and micro-batch; auto: what lockstep train measures before it begins to be the "
       "smallest that is nearly the fastest",
       kSamples},
      {"train.accumulation", MEMBER(loader.accumulation), "micro-batches per step", kSamples},
      {"train.epochs", MEMBER(trainer.epochs), "passes over the training data", {1, kMostEpochs}},
      {"train.until_epoch",
       MEMBER(trainer.until_epoch),
       "stop when so many epochs are done, in the middle of a training of train.epochs that --resume goes on "
       "with: its schedule stays that of all epochs; 0: run all",
       {0, kMostEpochs}},
      {"train.steps",
       MEMBER(trainer.max_steps),
       "stop after this many steps; 0: run all epochs",
       {0, kMostSteps}},
      {"train.average_every",
       MEMBER(trainer.average_every),
       "local SGD: each rank trains with its own gradients, and parameters are averaged over ranks after "
       "every "
       "so many steps; 0 or 1: gradients are averaged in every step",
       {0, kMostSteps}},
      {"train.average_after",
       MEMBER(trainer.average_after),
       "local SGD: steps that average gradients before it begins",
       {0, kMostSteps}},
      {"train.staleness",
       MEMBER(gradients.staleness),
       "1: gradients are averaged while the next step computes, whose optimizer then takes them; 0: before "
       "the "
       "optimizer of their own step",
       {0, 1}},
      {"train.seed", MEMBER(network.seed), "of initial weights, sample order and augmentation", {.least = 0}},
      {"train.recompute", MEMBER(network.recompute),
       "compute the insides of blocks again in backward: less memory, the same bits"},
      {"train.reproducible", MEMBER(reproducible),
       "add micro-batches and ranks along one tree: the same bits on any number of ranks with the same "
       "micro-batches; CPUs only"},
      {"train.threads",
       MEMBER(threads),
       "compute threads per rank; 0: cores / local ranks, or one fewer where a trial finds that faster (1 "
       "where "
       "train.reproducible)",
       {0, kMostThreads}},
      {"train.label_smoothing",
       MEMBER(network.label_smoothing),
       "share of the target spread over all classes",
       {.least = 0, .most = 1, .below_most = true}},
      {"train.precision", MEMBER(network.precision),
       "of activations, weights' copies and gradients; master weights are fp32"},
      {"train.loss_scale",
       MEMBER(loss_scale.initial),
       "fp16: what the loss is multiplied by at first",
       {1e-3, kLargest}},
      {"train.loss_scale_interval",
       MEMBER(loss_scale.rule.interval),
       "fp16: good steps until it doubles (an overflow halves it and skips the step); 0: it stays",
       {0, 1e9}},
      {"train.max_skipped_steps",
       MEMBER(trainer.max_skipped_steps),
       "steps in a row that are skipped where gradients are not finite, before one more ends the training; "
       "those "
       "that fp16's loss scale can make good are not counted",
       {0, kMostSteps}},
      {"train.ema_decay", MEMBER(trainer.ema_decay),
       "average of the weights over the steps, which is evaluated and exported in their place: this much of "
       "it, "
       "at most (1 + step) / (10 + step), stays in a step; 0: there is none",
       kFromZeroBelowOne},
      {"train.cuda_graph", MEMBER(trainer.record_steps),
       "on a GPU: record a whole step once and replay it, the same bits at less cost for the host"},
      {"optimizer.name", MEMBER(optimizer.name), "update rule", {}, names_in(registry.optimizers)},
      {"optimizer.learning_rate",
       MEMBER(schedule.learning_rate),
       "highest learning rate; left out: one that suits network, optimizer and train.batch x "
       "train.accumulation, after an epoch of warm-up unless that is set",
       kAboveZero,
       {},
       false,
       "chosen"},
      {"optimizer.scale_rate", MEMBER(schedule.scaling),
       "learning_rate, which must be given, is multiplied by the samples of all ranks' steps / scale_batch, "
       "or by "
       "the square root of that"},
      {"optimizer.scale_batch",
       MEMBER(schedule.scale_batch),
       "scale_rate: samples of a step that learning_rate was chosen for",
       {1, 1e9}},
      {"optimizer.momentum", MEMBER(optimizer.momentum), "of sgd and lars", kFromZeroBelowOne},
      {"optimizer.nesterov", MEMBER(optimizer.nesterov), "sgd: Nesterov's momentum"},
      {"optimizer.weight_decay", MEMBER(optimizer.weight_decay),
       "L2 penalty; adamw: decoupled, per step and learning rate", kFromZero},
      {"optimizer.decay_norm_and_bias", MEMBER(optimizer.decay_norm_and_bias),
       "sgd, adamw: weight decay of batch norm and biases too; lars exempts them always"},
      {"optimizer.beta1", MEMBER(optimizer.beta1), "adamw: decay of the mean gradient", kFromZeroBelowOne},
      {"optimizer.beta2", MEMBER(optimizer.beta2), "adamw: decay of the mean squared gradient",
       kFromZeroBelowOne},
      {"optimizer.epsilon",
       MEMBER(optimizer.epsilon),
       "adamw, lars: added to denominators",
       {kSmallest, kLargest}},
      {"optimizer.trust_coefficient", MEMBER(optimizer.trust_coefficient),
       "lars: a tensor's change / its norm, before learning_rate", kAboveZero},
      {"optimizer.clip_norm", MEMBER(trainer.clip_norm),
       "a step's mean gradient is scaled to this L2 norm over all parameters where its own is larger; 0: "
       "never",
       kFromZero},
      {"schedule.name",
       MEMBER(schedule.name),
       "learning rate after warm-up",
       {},
       names_in(registry.schedules)},
      {"schedule.warmup_epochs",
       MEMBER(schedule.warmup_epochs),
       "epochs of linear warm-up; left out: 1 before a chosen learning_rate, else 0",
       kEpochs,
       {},
       false,
       "chosen"},
      {"schedule.milestones",
       MEMBER(schedule.milestones),
       "step: epochs at which the rate is multiplied by gamma",
       {.least = 0, .most = kMostEpochs, .above_least = true},
       {},
       true},
      {"schedule.gamma",
       MEMBER(schedule.gamma),
       "step: factor",
       {.least = 0, .most = 1, .above_least = true}},
      {"schedule.final_fraction", MEMBER(schedule.final_fraction),
       "cosine: last learning rate / learning_rate", kUnit},
      {"comm.overlap", MEMBER(gradients.overlap), "average gradients during the backward pass"},
      {"comm.sum_type", MEMBER(gradients.sum_type),
       "the type in which gradients of 16 bits are added, over micro-batches and, where comm.codec is none, "
       "over ranks by NCCL: fp32 costs memory and twice the bytes between ranks; gradients: their own; "
       "auto: fp32 from 10 terms of bf16 and from 66 of fp16"},
      {"comm.cross_barrier", MEMBER(gradients.cross_barrier),
       "go on averaging beside the next step's forward pass, which updates parameters as it needs them: "
       "the same bits; comm.bucket_mib is then [1, 1, 1] where it is not given"},
      {"comm.bucket_mib",
       MEMBER(gradients.bucket_mib),
       "MiB of the first, the middle and the last gradient bucket",
       {.least = 0, .most = kMostMebibytes, .above_least = true}},
      {"comm.max_ctas",
       MEMBER(device_communicator.max_ctas),
       "thread blocks NCCL may take from compute on a GPU; 0: NCCL's own choice",
       {.least = 0, .most = 64}},
      {"comm.register_buckets", MEMBER(device_communicator.register_memory),
       "register gradient memory with NCCL, which then takes fewer thread blocks"},
      {"comm.check", MEMBER(check),
       "when ranks compare which collectives they call: never, in the first step of every plan, in every "
       "step, or before each collective, which is slow"},
      {"comm.between_nodes", MEMBER(between_nodes),
       "how sums on CPUs go between nodes: each rank's data straight to those that add it, or by recursive "
       "halving and doubling, with the same bits; auto: the better for a size; mpi: MPI's own, other bits"},
      {"comm.priority",
       MEMBER(communication_niceness),
       "on CPUs the nice value of the thread that communicates: below 0 it is given a core before threads "
       "that "
       "compute (root's to give: others go on without), above 0 after them; 0: as they are",
       {.least = -20, .most = 19}},
      {"comm.timeout_seconds",
       MEMBER(timeout_seconds),
       "seconds that a rank waits for others, is in a step, or may not be heard of, before the job "
       "ends as one hangs; 0: 20 times the longest step, and at least 30",
       {0, 1e6}},
      {"comm.topology", MEMBER(trainer.topology),
       "ring, for research: each rank trains with its own gradients and averages parameters with its two "
       "neighbours as they are, waiting for none; CPUs of one node only"},
      {"comm.codec", MEMBER(gradients.codec), codec_meaning(registry), {}, names_in(registry.exchanges)},
      {"comm.codec_limit",
       MEMBER(gradients.codec_limit),
       "what auto may choose and advice may name: nothing that loses more than this one",
       {},
       codec_limits()},
      {"comm.codec_for", MEMBER(gradients.codec_for),
       "other codecs for parameters whose names match: \"PATTERN=CODEC, PATTERN=CODEC\", where * stands for "
       "any "
       "characters and the first match counts; none: comm.codec for all"},
      {"comm.compress_within_node", MEMBER(gradients.compress_within_node),
       "compress between the ranks of a node, too, as if each were a node of its own"},
      {"kernels.choose",
       MEMBER(kernels.choose),
       "among kernels that compute the same: the fastest here (direct where train.reproducible), or by name",
       {},
       {"time", "direct", "winograd", "tiled winograd"}},
      {"kernels.cache", MEMBER(kernels.cache),
       "folder that keeps the fastest; auto: the user's cache; none: keep nothing"},
      {"world.device",
       MEMBER(device.device),
       "where ranks compute; cuda: on the GPUs that no other job has, in their order; idle: on those of them "
       "that are used least, by whomever; auto: on GPUs where there is one for each rank",
       {},
       {"auto", "cpu", "cuda", "idle"}},
      {"world.share_device", MEMBER(device.share_device),
       "let ranks share a GPU where there are too few: right results, meaningless times"},
      {"world.near_cores", MEMBER(device.near_cores),
       "a rank on a GPU keeps to the cores of its NUMA node, of those that it may use; so does what it holds "
       "in "
       "memory"},
      {"run.dir", MEMBER(run_dir), "folder for metrics and checkpoints"},
      {"run.export_precision", MEMBER(export_precision),
       "type in which --export stores parameters, rounded to the nearest; running statistics are fp32 in "
       "any"},
      {"run.log_every",
       MEMBER(log_every),
       "steps from one line of steps.jsonl to the next; each epoch ends one. 0: none",
       {0, kMostSteps}},
      {"run.histograms",
       MEMBER(histograms_every),
       "epochs from one that ends with histograms of weights and gradients in the files for TensorBoard to "
       "the next; 0: none",
       {0, kMostSteps}},
      {.name = "run.metrics",
       .member = MEMBER(metrics),
       .description = "what evaluations tell beside loss and accuracy, and take time for. top5: the share of "
                      "samples whose label is among the five largest logits; f1: precision, recall and F1 of "
                      "classes; confusion: how often each class was taken for each, of up to 100",
       .words = {kMetricNames.begin(), kMetricNames.end()},
       .several = true},
      {"run.evaluate_every", MEMBER(trainer.evaluate_epochs),
       "epochs from one that is evaluated on the test set to the next; 0: none but the last, which always is",
       kEpochs},
      {"run.stop_after_epochs", MEMBER(best.stop_after_epochs),
       "training stops, with exit code 0, when so many epochs brought no better evaluation; 0: it does not",
       kEpochs},
      {"run.stop_metric", MEMBER(best.by),
       "which evaluation is better, for run.stop_after_epochs and run.keep_best: by the accuracy or the loss "
       "on "
       "the test set"},
      {"run.stop_min_delta", MEMBER(best.stop_min_delta),
       "run.stop_after_epochs: an evaluation is better where it is so by more than this; of an accuracy a "
       "fraction, such as 0.001",
       kFromZero},
      {"run.keep_best", MEMBER(best.keep),
       "write the network to best.safetensors in run.dir whenever an epoch's evaluation is the best so far"},
      {"run.metrics_every",
       MEMBER(trainer.evaluate_every),
       "steps from one evaluation within an epoch to the next, each a line of evaluations.jsonl; 0: only "
       "behind epochs",
       {0, kMostSteps}},
      {"run.measure_peak", MEMBER(measure_peak),
       "measure, before the first step, what the devices could do: the figure peak is held against it"},
      {"run.busy_below",
       MEMBER(busy.below),
       "share of time: devices that compute for less are told of, with the cause and what to change; 0: "
       "never",
       {0, 1}},
      {"run.peak_below",
       MEMBER(busy.peak_below),
       "share of what is attainable: devices that are busy, and compute at less, are told of likewise; 0: "
       "never",
       {0, 1}},
      {"run.busy_lines",
       MEMBER(busy.lines),
       "lines of steps.jsonl in a row that are below it, before that is told",
       {1, 1e6}},
      {"run.event_pause_seconds",
       MEMBER(busy.pause_seconds),
       "the shortest time from one such event to the next",
       {0, 1e6}},
      {.name = "run.event_command",
       .member = MEMBER(busy.command),
       .description =
           "command of sh that is told of each event: LOCKSTEP_EVENT is its line of events.jsonl; none: "
           "nobody. By --set or the variable LOCKSTEP_EVENT_COMMAND alone, never from a file; what "
           "is written of a run says \"redacted\"",
       .secret = true},
      {"run.checkpoint_every",
       MEMBER(checkpoints.every),
       "steps from one checkpoint to the next; 0: none by their number",
       {0, kMostSteps}},
      {"run.checkpoint_minutes",
       MEMBER(checkpoints.minutes),
       "minutes from one checkpoint to the next; 0: none by time. With either, the best after an epoch and "
       "the last of a training are saved, too",
       {0, 1e6}},
      {"run.keep",
       MEMBER(checkpoints.keep),
       "newest checkpoints that stay, beside the one with the best test accuracy",
       {1, 1e6}},
      {"run.checkpoint_errors", MEMBER(checkpoints.errors),
       "a checkpoint that cannot be written: a warning, or the end of the training"},
      {"run.check_every",
       MEMBER(check_every),
       "steps after which ranks compare what they share, bit by bit; 0: only at the end. Not with "
       "train.average_every",
       {0, kMostSteps}},
      {"run.monitor_seconds",
       MEMBER(monitor_seconds),
       "seconds from one look at the devices and their machine to the next, for monitor.csv in run.dir; 0: "
       "none",
       {0, 1e6}},
      {"run.price_per_kwh",
       MEMBER(price_per_kwh),
       "what a kilowatt-hour costs, in whatever currency: epochs are told what they cost; 0: they are not",
       {0, 1e6}},
      {"run.grace_seconds",
       MEMBER(checkpoints.grace_seconds),
       "a signal that stops the training: the longest time to end the step and to save",
       {.least = 0, .most = 1e6, .above_least = true}},
      {"profile.wait",
       MEMBER(profile.wait),
       "steps at the beginning of each cycle that are left alone",
       {0, kMostSteps}},
      {"profile.warmup",
       MEMBER(profile.warmup),
       "steps behind them that are observed, and forgotten",
       {0, kMostSteps}},
      {"profile.active",
       MEMBER(profile.active),
       "steps behind those that are observed: each rank writes a file of them, which TensorBoard's "
       "torch-tb-profiler and Perfetto open; 0: nothing is profiled",
       {0, kMostProfiledSteps}},
      {"profile.repeat",
       MEMBER(profile.repeat),
       "cycles of wait, warmup and active; 0: as many as there are steps for",
       {0, kMostSteps}},
      {"profile.dir", MEMBER(profile.dir), "folder of these files; auto: the folder profile in run.dir"},
  };
#define OWN(part) [](Config& config) -> OwnNumbers& { return config.part.own; }
  add_own_keys(table, "model", registry.networks, OWN(model));
  add_own_keys(table, "optimizer", registry.optimizers, OWN(optimizer));
  add_own_keys(table, "schedule", registry.schedules, OWN(schedule));
  add_own_keys(table, "comm", registry.exchanges, OWN(gradients));
#undef OWN
  Config config;
  for (Key& key : table) {
    const Member member = key.member(config);
    if (const auto* choice = std::get_if<Choice>(&member))
      key.words = {choice->words.begin(), choice->words.end()};
  }
  return table;
}

#undef MEMBER

std::span<const Key> keys() {
  static const std::vector<Key> table = keys_of({});
  return table;
}

}  // namespace lockstep::detail
