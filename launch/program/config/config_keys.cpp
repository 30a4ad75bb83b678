// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_keys.h"

#include <algorithm>

#include <fmt/format.h>

#include "comm/codecs/auto_exchange.h"
#include "core/text/named_entries.h"
#include "kernels/pixel_targets.h"

namespace lockstep::detail {
namespace {

// Products of two of these, and of one with the samples of any dataset, stay below 2^63.
constexpr double kMostSamples = 1 << 20;  // samples of a batch, and micro-batches of a step
constexpr double kMostEpochs = 1'000'000;
constexpr double kMostSteps = 1e12;
constexpr double kMostProfiledSteps = 10'000;  // per cycle; they are kept in memory
constexpr double kMostThreads = 4096;
constexpr double kMostPixels = 4096;
constexpr double kMostSyntheticSamples = 2147483647;  // a SampleId's index
constexpr double kMostMebibytes = 1 << 16;
constexpr double kMostGibibytes = 1 << 16;
// Bounds within which fp32 results stay finite and nonzero.
constexpr double kLargest = 1e30;
constexpr double kSmallest = 1e-30;

constexpr Range kAboveZero = {.least = 0, .most = kLargest, .above_least = true};
constexpr Range kFromZero = {.least = 0, .most = kLargest};
constexpr Range kSamples = {.least = 1, .most = kMostSamples};
constexpr Range kUpToAHundred = {.least = 0, .most = 100};
constexpr Range kSide = {.least = 1, .most = kMostPixels};
constexpr Range kPixels = {.least = 0, .most = kMostPixels};
constexpr Range kSetSize = {.least = 1, .most = kMostSyntheticSamples};
constexpr Range kEpochs = {.least = 0, .most = kMostEpochs};
constexpr Range kFromZeroBelowOne = {.least = 0, .most = 1, .below_most = true};
constexpr Range kUnit = {.least = 0, .most = 1};
constexpr Range kSteps = {.least = 0, .most = kMostSteps};
constexpr Range kUpToAMillion = {.least = 0, .most = 1e6};
constexpr Range kCount = {.least = 1, .most = 1e6};
constexpr Range kThreadBlocks = {.least = 0, .most = 64};  // of NCCL

std::string codec_meaning(const Registry& registry) {
  std::string text = "Exchange of gradients between nodes";
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
      {"model.name", MEMBER(model.name), "Network architecture", {}, names_in(registry.networks)},
      {"model.batch_norm", MEMBER(model.batch_norm), "cnn: use batch normalisation"},
      {"model.stem", MEMBER(model.stem),
       "resnets and mobilenet_v2: first layers for small (cifar) or large (imagenet) images. auto: cifar for "
       "images up to 64 pixels high, else imagenet"},
      {"model.zero_init_residual", MEMBER(model.zero_init_residual),
       "resnets: initialise the last gamma of each block to 0"},
      {"model.sync_batch_norm", MEMBER(model.sync_batch_norm),
       "Compute batch norm moments over the batches of all ranks, which then wait for each other in every "
       "such layer"},
      {"model.dropout",
       MEMBER(model.dropout),
       "Share of features that are dropped before the classifier. -1: the network's default (vgg11_bn 0.5 "
       "from 224x224 on, mobilenet_v2 0.2, else 0)",
       {.least = -1, .most = 1, .below_most = true}},
      {"model.freeze", MEMBER(model.freeze),
       "Layers that are not trained, by prefixes of their names (\"layer1\", \"layer2.0\"). Their parameters "
       "do not change, and their batch norm uses its running statistics without updating them. []: train all "
       "layers"},
      {"model.reset_head", MEMBER(model.reset_head),
       "With --init: true does not load the classifier head (the last linear layer) but initialises it "
       "randomly, so that the classes may differ from the file's; auto does so only if their number differs"},
      {"model.layer", MEMBER(model.layers),
       "layers: the layers, as tables [[model.layer]] (models/networks/layers.md). A field can be overridden "
       "as model.layer.NAME.FIELD"},
      {"model.loss", MEMBER(model.loss),
       "Loss of the network's outputs, one for each class. cross_entropy: of their softmax; "
       "binary_cross_entropy: of each one's sigmoid, the mean over classes; mean_squared_error: of the "
       "outputs themselves, the mean over classes. mean_squared_error, and binary_cross_entropy of two "
       "classes, also accept a single output: it is compared with the label's number"},
      {"data.format", MEMBER(dataset.format), "File format of the dataset", {}, names_in(registry.formats)},
      {"data.path", MEMBER(dataset.path),
       "Folder of the dataset; for csv and hdf5 also a single file. Not needed for computed formats "
       "(synthetic, drug_trial, shapes)"},
      {"data.test_split", MEMBER(dataset.test_split),
       "Test split: its folder, or a word in its file names, such as val. auto: the first of test, testing, "
       "val, valid, validation, dev and eval that exists. A split without labels is skipped if another has "
       "labels (not for tfrecord and webdataset)"},
      {"data.channels",
       MEMBER(dataset.images.channels),
       "Image files: channels to which all images are converted, 1 (grayscale) or 3 (RGB). 0: the number of "
       "channels of most training images (256 are read)",
       {0, 3}},
      {"data.exif_orientation", MEMBER(dataset.images.exif_orientation),
       "Image files: apply rotates and mirrors an image as its EXIF data says, ignore uses it as stored"},
      {"data.recursive", MEMBER(dataset.recursive),
       "image_folder: also read folders inside the class folders"},
      {"data.synthetic.height", MEMBER(dataset.synthetic.height), "synthetic: image height in pixels", kSide},
      {"data.synthetic.width", MEMBER(dataset.synthetic.width), "synthetic: image width in pixels", kSide},
      {"data.synthetic.channels",
       MEMBER(dataset.synthetic.channels),
       "synthetic: channels of an image, 1 byte each",
       {1, 1024}},
      {"data.synthetic.classes", MEMBER(dataset.synthetic.classes),
       "synthetic: number of classes; successive images have successive labels", kCount},
      {"data.synthetic.train_samples", MEMBER(dataset.synthetic.train_samples),
       "synthetic: number of training images, which are computed when they are read", kSetSize},
      {"data.synthetic.test_samples", MEMBER(dataset.synthetic.test_samples),
       "synthetic: number of test images", kSetSize},
      {"data.csv.delimiter", MEMBER(dataset.csv.delimiter),
       "csv: separator of cells. auto: the one that makes the first rows a table of numbers"},
      {"data.csv.header", MEMBER(dataset.csv.header),
       "csv: whether the first row holds column names. auto: a guess from the first rows"},
      {"data.csv.label", MEMBER(dataset.csv.label),
       "csv: label column, by name or by number from 1. auto: the column called label, labels, class, target "
       "or y, else the last one"},
      {"data.csv.ignore", MEMBER(dataset.csv.ignore),
       "csv: columns that are not features, as names or numbers separated by commas. none: all columns "
       "except the label are features"},
      {"data.csv.scaling", MEMBER(dataset.csv.scaling),
       "csv: scaling of each column by the statistics of the training set. none: no scaling; min_max: to [0, "
       "1]; standard: to mean 0 and standard deviation 1"},
      {"data.tfrecord.image", MEMBER(dataset.tfrecord.image),
       "tfrecord: name of the feature that holds the image. auto: image/encoded or image"},
      {"data.tfrecord.label", MEMBER(dataset.tfrecord.label),
       "tfrecord: name of the feature that holds the label. auto: image/class/label, label or class"},
      {"data.masks.classes",
       MEMBER(dataset.masks.classes),
       "masks: number of classes; pixels of masks have the values 0 to this number - 1. 0: not given",
       {0, static_cast<double>(kMostMaskClasses)}},
      {"data.masks.ignore_index",
       MEMBER(dataset.masks.ignore_index),
       "masks: value of pixels that belong to no class, and have no part in loss and metrics",
       {0, 255}},
      {"data.hdf5.images", MEMBER(dataset.hdf5.images),
       "hdf5: name of the array of images, such as group/images; {split} is replaced by a word of the split. "
       "auto: images, image, img, x or data, also combined with such a word (train_set_x, X_train)"},
      {"data.hdf5.labels", MEMBER(dataset.hdf5.labels),
       "hdf5: name of the array of labels, in the same file or in another one of the split. auto: labels, "
       "label, y, targets or target, also combined with a word of the split"},
      {"data.validation_share", MEMBER(dataset.validation_share),
       "For datasets without test images: share of the training images, selected by name, that is used for "
       "testing and not for training. 0 disables it",
       kFromZeroBelowOne},
      {"data.resize",
       MEMBER(dataset.resize.size),
       "Height and width in pixels to which every image is resized. 0: no resizing; all images must then "
       "have one size",
       {0, 65536}},
      {"data.random_resized_crop", MEMBER(dataset.resize.random_crop),
       "Training images: resize a random part of each, 8 % to 100 % of its area, to data.resize"},
      {"data.center_crop",
       MEMBER(dataset.resize.center_share),
       "Images that are resized without a random crop: share of the shorter side that the center crop keeps",
       {0.01, 1}},
      {"data.mean",
       MEMBER(network.mean),
       "Mean per channel, subtracted from pixels in [0, 1]. []: 0",
       {.least = -1e12, .most = 1e12}},
      {"data.deviation",
       MEMBER(network.deviation),
       "Standard deviation per channel, by which the pixels are then divided. []: 1",
       {1e-12, 1e12}},
      {"data.crop_padding", MEMBER(network.augmentation.crop_padding),
       "Training images: width in pixels of a black border, from which a window of the image's size is "
       "cropped at random. 0 disables it",
       kPixels},
      {"data.horizontal_flip", MEMBER(network.augmentation.horizontal_flip),
       "Training images: mirror each with probability 1/2"},
      {"data.brightness", MEMBER(network.augmentation.color.brightness),
       "Training images: brightness is multiplied by a random factor from [1 - x, 1 + x], at least 0. 0 "
       "disables it",
       kUpToAHundred},
      {"data.contrast", MEMBER(network.augmentation.color.contrast),
       "Training images: the distance from the image's mean gray is multiplied by a random factor from [1 - "
       "x, 1 + x], at least 0. 0 disables it",
       kUpToAHundred},
      {"data.saturation", MEMBER(network.augmentation.color.saturation),
       "Training images: the distance from the pixel's own gray is multiplied by a random factor from [1 - "
       "x, 1 + x], at least 0. 0 disables it",
       kUpToAHundred},
      {"data.hue",
       MEMBER(network.augmentation.color.hue),
       "Training images: the hue is shifted by a random part from [-x, x] of the color circle. 0 disables it",
       {0, 0.5}},
      {"data.augment_on", MEMBER(augment_on),
       "Where color, crop and flip are computed, with the same result: on the device, or on the host by the "
       "loader's threads. auto: on the device"},
      {"data.cutout", MEMBER(network.augmentation.cutout),
       "Training images: side in pixels of a square around a random pixel that is erased. 0 disables it",
       kPixels},
      {"data.random_erasing", MEMBER(network.augmentation.random_erasing),
       "Training images: probability that a random rectangle, 2 % to 33 % of the image, is erased. 0 "
       "disables it",
       kUnit},
      {"data.mixup", MEMBER(network.augmentation.mixup),
       "Training images and labels: alpha of the distribution Beta(alpha, alpha) of the shares with which "
       "they are mixed in pairs. 0 disables it",
       kUpToAHundred},
      {"data.cutmix", MEMBER(network.augmentation.cutmix),
       "Training images and labels: the same alpha where a rectangle of the other image is pasted; with "
       "data.mixup each sample uses one of the two. 0 disables it",
       kUpToAHundred},
      {"data.tail", MEMBER(loader.tail),
       "Samples that do not fill the last global batch of an epoch. drop: they are left out; carry: they "
       "begin the next epoch; repeat: the epoch's first samples fill up the batch; exact: they form a short "
       "batch"},
      {"data.loader", MEMBER(loader_mode),
       "stream: read and decode images each time; preload: decode them once, into memory that the ranks of a "
       "node share; device: into the device's memory. auto, for several epochs: device if they take at most "
       "a tenth of a GPU's free memory, else preload if they are decoded and take at most a quarter of the "
       "free memory, else stream"},
      {"data.preload", MEMBER(preload_time),
       "When images that data.loader keeps in host memory are decoded. during: when training first reads "
       "them; before: all before the first step, which shows the progress"},
      {"data.loader_threads",
       MEMBER(loader.threads),
       "Threads per rank that prepare batches. 0: one at first, and more, up to the rank's cores, while "
       "training waits for batches",
       {0, 64}},
      {"data.on_error", MEMBER(dataset.on_error),
       "If an image or a row cannot be read: leave_out omits and counts it, stop ends the job with exit code "
       "65"},
      {"data.verify", MEMBER(verify.extent),
       "Check before the first step. headers: read the header of every image; all: decode every image; none: "
       "no check"},
      {"train.batch", [](Config& config) -> Member { return IntegerOrAuto(&config.loader.batch); },
       "Samples per rank and micro-batch. auto: lockstep train measures and uses the smallest batch that "
       "reaches 95 % of the highest samples/s",
       kSamples},
      {"train.accumulation", MEMBER(loader.accumulation), "Micro-batches per rank and step", kSamples},
      {"train.epochs", MEMBER(trainer.epochs), "Passes over the training data", {1, kMostEpochs}},
      {"train.until_epoch", MEMBER(until_epoch),
       "Stop after this number of epochs; --resume can continue to train.epochs, for which the schedule is "
       "made. 0: run all epochs",
       kEpochs},
      {"train.steps", MEMBER(trainer.max_steps),
       "Stop after this number of steps, where the schedule then ends; its warm-up and milestones keep their "
       "steps. 0: run all epochs",
       kSteps},
      {"train.average_every", MEMBER(trainer.average_every),
       "Local SGD: steps between averages of the parameters over ranks; between them each rank trains with "
       "its own gradients. 0 or 1: average gradients in every step",
       kSteps},
      {"train.average_after", MEMBER(trainer.average_after),
       "Local SGD: number of steps with averaged gradients before it begins", kSteps},
      {"train.staleness", MEMBER(gradients.staleness),
       "Steps by which averaged gradients reach the optimizer late. 1: they are averaged while the next step "
       "computes, and that step's optimizer applies them; 0: the step's own optimizer waits for them",
       kUnit},
      {"train.seed",
       MEMBER(network.seed),
       "Seed of initial weights, sample order and augmentation",
       {.least = 0}},
      {"train.recompute",
       MEMBER(network.recompute),
       "Recompute layers in the backward pass instead of storing their results: less memory, more time, the "
       "same bits. true: the insides of residual blocks; an integer n: divides the layers into segments of "
       "n, each of which keeps only its last result; the last segment keeps all; auto: the least work that "
       "fits into memory; least: the least memory",
       {.least = 2}},
      {"train.reproducible", MEMBER(reproducible),
       "Add micro-batches and ranks along one tree: the same micro-batches per step give the same bits on "
       "any number of ranks. CPUs only"},
      {"train.threads",
       MEMBER(threads),
       "Compute threads per rank. 0: cores / local ranks, or one fewer if a trial finds that faster (1 with "
       "train.reproducible)",
       {0, kMostThreads}},
      {"train.label_smoothing", MEMBER(network.label_smoothing),
       "Share of the target that is spread over all classes; without effect if mean_squared_error compares a "
       "single output with the label's number. 0 disables it",
       kFromZeroBelowOne},
      {"train.precision", MEMBER(network.precision),
       "Type of activations, gradients and the weights that layers compute with; master weights are fp32. "
       "auto: lockstep train measures and uses the fastest on this machine"},
      {"train.loss_scale", MEMBER(loss_scale.initial), "fp16: initial loss scale", {1e-3, kLargest}},
      {"train.loss_scale_interval",
       MEMBER(loss_scale.rule.interval),
       "fp16: steps without overflow after which the loss scale doubles; an overflow halves it and skips the "
       "step. 0: the scale is constant",
       {0, 1e9}},
      {"train.max_skipped_steps", MEMBER(trainer.max_skipped_steps),
       "Consecutive steps that may be skipped because gradients are not finite; one more ends the training. "
       "Steps that fp16's loss scale handles do not count. 0: the first such step ends it",
       kSteps},
      {"train.ema_decay", MEMBER(trainer.ema_decay),
       "Decay of an exponential moving average of the weights, limited to (1 + step) / (10 + step). "
       "Evaluation and export use the averaged weights. 0 disables it",
       kFromZeroBelowOne},
      {"train.cuda_graph", MEMBER(trainer.record_steps),
       "GPUs: record a whole step once and replay it: the same bits, less work for the host"},
      {"train.enqueue_every", MEMBER(trainer.enqueue_every),
       "GPUs: enqueue one step in this many kernel by kernel instead of replaying it, so that Nsight Systems "
       "shows its layers and buckets by name. 0: none",
       kSteps},
      {"optimizer.name", MEMBER(optimizer.name), "Update rule", {}, names_in(registry.optimizers)},
      {"optimizer.learning_rate",
       MEMBER(schedule.learning_rate),
       "Highest learning rate. If not set: a rate that suits the network, the optimizer and train.batch x "
       "train.accumulation, after an epoch of warm-up unless schedule.warmup_epochs is set",
       kAboveZero,
       {},
       false,
       "chosen"},
      {"optimizer.scale_rate", MEMBER(schedule.scaling),
       "Scaling of learning_rate, which must be set, with the samples per step of all ranks. linear: times "
       "samples / scale_batch; sqrt: times the square root of that; none: no scaling"},
      {"optimizer.scale_batch",
       MEMBER(schedule.scale_batch),
       "scale_rate: samples per step for which learning_rate was chosen",
       {1, 1e9}},
      {"optimizer.momentum", MEMBER(optimizer.momentum), "sgd, lars: momentum. 0 disables it",
       kFromZeroBelowOne},
      {"optimizer.nesterov", MEMBER(optimizer.nesterov), "sgd: use Nesterov momentum"},
      {"optimizer.weight_decay", MEMBER(optimizer.weight_decay),
       "Weight decay: an L2 penalty; for adamw decoupled, multiplied by the learning rate in each step. 0 "
       "disables it",
       kFromZero},
      {"optimizer.decay_norm_and_bias", MEMBER(optimizer.decay_norm_and_bias),
       "sgd, adamw: apply weight decay to biases and parameters of norm layers, too; lars never does"},
      {"optimizer.beta1", MEMBER(optimizer.beta1), "adamw: decay of the mean gradient", kFromZeroBelowOne},
      {"optimizer.beta2", MEMBER(optimizer.beta2), "adamw: decay of the mean squared gradient",
       kFromZeroBelowOne},
      {"optimizer.epsilon",
       MEMBER(optimizer.epsilon),
       "adamw, lars: added to denominators",
       {kSmallest, kLargest}},
      {"optimizer.trust_coefficient", MEMBER(optimizer.trust_coefficient),
       "lars: ratio of the change of a tensor to its norm, before learning_rate", kAboveZero},
      {"optimizer.clip_norm", MEMBER(trainer.clip_norm),
       "Largest L2 norm of a step's mean gradient over all parameters; a larger gradient is scaled to it. 0 "
       "disables it",
       kFromZero},
      {"schedule.name",
       MEMBER(schedule.name),
       "Learning rate schedule after the warm-up",
       {},
       names_in(registry.schedules)},
      {"schedule.warmup_epochs",
       MEMBER(schedule.warmup_epochs),
       "Epochs of linear warm-up. If not set: 1 (0.5 if train.epochs is 1) with a chosen learning_rate, else "
       "0. 0 disables it",
       kEpochs,
       {},
       false,
       "chosen"},
      {"schedule.milestones",
       MEMBER(schedule.milestones),
       "step, which needs at least one: epochs at which the learning rate is multiplied by gamma",
       {.least = 0, .most = kMostEpochs, .above_least = true},
       {},
       true},
      {"schedule.gamma",
       MEMBER(schedule.gamma),
       "step: factor of the learning rate at each milestone",
       {.least = 0, .most = 1, .above_least = true}},
      {"schedule.final_fraction", MEMBER(schedule.final_fraction),
       "cosine: last learning rate as a fraction of learning_rate", kUnit},
      {"comm.overlap", MEMBER(gradients.overlap),
       "Average gradients during the backward pass instead of after it"},
      {"comm.exchange", MEMBER(gradients.exchange),
       "dense: every rank gets the sums of all gradients and updates all parameters. sharded: each rank gets "
       "the sums of its share, updates it and sends it to all ranks: the same bits on CPUs, and a rank keeps "
       "1/N of the optimizer's state"},
      {"comm.sum_type", MEMBER(gradients.sum_type),
       "Type in which 16-bit gradients are added: over micro-batches and, if comm.codec is none, over ranks "
       "by NCCL. fp32: more memory and twice the bytes between ranks; gradients: their own type; auto: fp32 "
       "from 10 terms of bf16 and from 66 of fp16"},
      {"comm.cross_barrier", MEMBER(gradients.cross_barrier),
       "Continue averaging during the next step's forward pass, which waits for a parameter where it needs "
       "it: the same bits. comm.bucket_mib is then [1, 1, 1] by default"},
      {"comm.bucket_mib",
       MEMBER(gradients.bucket_mib),
       "MiB of the first, the middle and the last gradient bucket",
       {.least = 0, .most = kMostMebibytes, .above_least = true}},
      {"comm.min_ctas", MEMBER(device_communicator.min_ctas),
       "GPUs: smallest number of thread blocks of each collective of NCCL. 0: NCCL's own choice",
       kThreadBlocks},
      {"comm.max_ctas", MEMBER(device_communicator.max_ctas),
       "GPUs: largest number of thread blocks of each collective of NCCL. 0: NCCL's own choice",
       kThreadBlocks},
      {"comm.nvls_ctas", MEMBER(device_communicator.nvls_ctas),
       "GPUs: thread blocks that NCCL uses where the NVLink switch adds (NVLink SHARP). 0: NCCL's own choice",
       kThreadBlocks},
      {"comm.ctas_beside_compute", MEMBER(device_communicator.ctas_beside_compute),
       "GPUs: largest number of thread blocks of a sum beside compute (NCCL's tuner); other collectives keep "
       "NCCL's number. 0: no limit",
       kThreadBlocks},
      {"comm.cga_cluster_size",
       MEMBER(device_communicator.cga_cluster_size),
       "GPUs: thread blocks of NCCL in one cluster. 0: no clusters; -1: NCCL's own choice",
       {.least = -1, .most = 8}},
      {"comm.cta_policy", MEMBER(device_communicator.cta_policy),
       "GPUs: how NCCL chooses thread blocks. efficiency: as few as give most of the bandwidth; zero: copy "
       "engines move the parameters of comm.exchange = \"sharded\" within a node, without thread blocks"},
      {"comm.traffic_class",
       MEMBER(device_communicator.traffic_class),
       "GPUs: service level (InfiniBand) or type of service (RoCE) of NCCL's traffic. -1: NCCL's own choice",
       {.least = -1, .most = 255}},
      {"comm.gradient_memory", MEMBER(device_communicator.memory),
       "GPUs: memory of gradients. window: NCCL's symmetric memory, which peers of a node access directly; "
       "registered: NCCL needs no copies, and fewer thread blocks; plain: neither"},
      {"comm.kernel_times", MEMBER(device_communicator.kernel_times),
       "GPUs: NCCL's profiler times the kernels of collectives; the end of a training shows the times and "
       "NCCL's algorithms. Needs train.cuda_graph = false"},
      {"comm.check", MEMBER(check),
       "When ranks compare the collectives that they call. off: never; plan: in the first step of every "
       "plan; step: in every step; collective: before each collective (slow)"},
      {"comm.between_nodes", MEMBER(between_nodes),
       "CPUs: algorithm of sums between nodes. direct: each rank sends its data to the ranks that add it; "
       "halving: recursive halving and doubling, the same bits; auto: the faster of these for the size; mpi: "
       "MPI's own all-reduce, other bits"},
      {"comm.priority",
       MEMBER(communication_niceness),
       "CPUs: nice value of the communication thread. Below 0 it gets a core before compute threads (needs "
       "root, else nothing changes), above 0 after them. 0: unchanged",
       {.least = -20, .most = 19}},
      {"comm.timeout_seconds", MEMBER(timeout_seconds),
       "Seconds for which a rank may wait for other ranks, be in one step or send no sign of life; then the "
       "job ends as one that hangs. 0: 20 times the longest step, at least 30 s and twice the time between "
       "averages, or 60 s without a sign of life",
       kUpToAMillion},
      {"comm.topology", MEMBER(trainer.topology),
       "all: averages are over all ranks. ring, for research: each rank trains with its own gradients and "
       "averages its parameters with the current ones of its two neighbours, without waiting; CPUs of one "
       "node only"},
      {"comm.codec", MEMBER(gradients.codec), codec_meaning(registry), {}, names_in(registry.exchanges)},
      {"comm.codec_limit",
       MEMBER(gradients.codec_limit),
       "Most lossy codec that comm.codec = auto may choose and that advice may name",
       {},
       codec_limits()},
      {"comm.codec_for", MEMBER(gradients.codec_for),
       "Codecs by parameter name: \"PATTERN=CODEC, PATTERN=CODEC\". * matches any characters, and the first "
       "match counts. none: comm.codec for all parameters"},
      {"comm.compress_within_node", MEMBER(gradients.compress_within_node),
       "Also compress between the ranks of a node, as if each rank were a node"},
      {"kernels.choose",
       MEMBER(kernels.choose),
       "Selection among kernels that compute the same. time: the fastest on this machine (direct with "
       "train.reproducible); else the kernel of that name where it exists",
       {},
       {"time", "direct", "winograd", "tiled winograd"}},
      {"kernels.cache", MEMBER(kernels.cache),
       "Folder that keeps the fastest kernels. auto: the user's cache folder; none: keep nothing"},
      {"world.device",
       MEMBER(device.device),
       "Device of the ranks. cuda: GPUs that no other job has, in their order; idle: the same GPUs, the "
       "least used by any program first; auto: GPUs if there is one for each rank, else the CPU",
       {},
       {"auto", "cpu", "cuda", "idle"}},
      {"world.share_device", MEMBER(device.share_device),
       "Let ranks share a GPU if there are too few: right results, meaningless times"},
      {"world.memory_limit",
       MEMBER(device.memory_gib),
       "Memory that a rank may use of its device, in GiB: of a GPU, or of a CPU's memory. A training that "
       "needs more is refused before it starts. 0: what is free, divided by the ranks that share the device",
       {0, kMostGibibytes}},
      {"world.near_cores", MEMBER(device.near_cores),
       "Bind a rank on a GPU, and its memory, to those cores of the GPU's NUMA node that it may use"},
      {"run.dir", MEMBER(run_dir), "Folder for metrics and checkpoints"},
      {"run.export_precision", MEMBER(export_precision),
       "Type in which --export stores parameters, rounded to the nearest; running statistics are always "
       "fp32"},
      {"run.log_every", MEMBER(log_every),
       "Steps per line of steps.jsonl; an epoch's end, an evaluation and a checkpoint also end a line. 0 "
       "disables it",
       kSteps},
      {"run.histograms", MEMBER(histograms_every),
       "Epochs between histograms of weights and gradients in the TensorBoard files, written at an epoch's "
       "end. 0 disables them",
       kSteps},
      {.name = "run.metrics",
       .member = MEMBER(metrics),
       .description = "Metrics that evaluations compute besides loss and accuracy, which takes time. top5: "
                      "share of samples whose label has one of the five largest logits; f1: precision, "
                      "recall and F1 of each class; confusion: samples by class and predicted class, for up "
                      "to 100 classes; iou: intersection over union of each class, mostly for images with "
                      "masks, whose samples are pixels; none: no further metrics",
       .words = {kMetricNames.begin(), kMetricNames.end()},
       .several = true},
      {"run.evaluate_every", MEMBER(trainer.evaluate_epochs),
       "Epochs between evaluations on the test set. 0: only after the last epoch, which is always evaluated",
       kEpochs},
      {"run.stop_after_epochs", MEMBER(best.stop_after_epochs),
       "Stop training, with exit code 0, after this number of epochs without a better evaluation. 0 disables "
       "it",
       kEpochs},
      {"run.stop_metric", MEMBER(best.by),
       "Figure of the test set by which run.stop_after_epochs and run.keep_best compare evaluations"},
      {"run.stop_min_delta", MEMBER(best.stop_min_delta),
       "Improvement that run.stop_after_epochs requires: an evaluation is better only by more than this, in "
       "units of the loss or, for the accuracy, as a fraction, such as 0.001",
       kFromZero},
      {"run.keep_best", MEMBER(best.keep),
       "Write the network to best.safetensors in run.dir whenever the evaluation of an epoch is the best so "
       "far"},
      {"run.metrics_every", MEMBER(trainer.evaluate_every),
       "Steps between evaluations within an epoch, each a line of evaluations.jsonl. 0: only after epochs",
       kSteps},
      {"run.measure_peak", MEMBER(measure_peak),
       "Measure before the first step how fast the devices can compute; the figure peak is relative to it"},
      {"run.busy_below", MEMBER(busy.below),
       "Share of time: a warning names the cause and the change to make if devices compute for less. 0 "
       "disables it, and run.peak_below",
       kUnit},
      {"run.peak_below", MEMBER(busy.peak_below),
       "Share of the attainable rate: the same warning if devices are busy but compute more slowly. 0 "
       "disables it",
       kUnit},
      {"run.busy_lines", MEMBER(busy.lines),
       "Consecutive lines of steps.jsonl that must be below the limit before the warning", kCount},
      {"run.event_pause_seconds", MEMBER(busy.pause_seconds),
       "Shortest time between two such warnings in seconds", kUpToAMillion},
      {.name = "run.event_command",
       .member = MEMBER(busy.command),
       .description =
           "Shell command (sh) that runs at each such warning, with its line of events.jsonl in "
           "LOCKSTEP_EVENT. Its output is appended to event_command.log. none: the command in "
           "the variable LOCKSTEP_EVENT_COMMAND, if there is one. A file may not set the command; the files "
           "of a run contain \"redacted\" instead",
       .secret = true},
      {"run.checkpoint_every", MEMBER(checkpoints.every),
       "Steps between checkpoints. 0 disables saving by steps", kSteps},
      {"run.checkpoint_minutes", MEMBER(checkpoints.minutes),
       "Minutes between checkpoints. 0 disables saving by time. If either interval is set, a new best after "
       "an epoch and the end of the training are saved, too",
       kUpToAMillion},
      {"run.keep", MEMBER(checkpoints.keep),
       "Number of newest checkpoints to keep, besides the one with the best test accuracy", kCount},
      {"run.checkpoint_errors", MEMBER(checkpoints.errors),
       "If a checkpoint cannot be written: warn and continue, or stop the training"},
      {"run.check_every", MEMBER(check_every),
       "Steps between comparisons, bit by bit, of the state that ranks share. 0: only at the end. Not with "
       "train.average_every",
       kSteps},
      {"run.monitor_seconds", MEMBER(monitor_seconds),
       "Seconds between two samples of the devices and their machine in monitor.csv of run.dir: at least "
       "0.001. 0 disables it",
       kUpToAMillion},
      {"run.prometheus_dir", MEMBER(prometheus.dir),
       "Folder in which each node writes its metrics for Prometheus as a file NAME.prom, for the textfile "
       "collector of node_exporter and for lockstep monitor --from. none disables it"},
      {"run.prometheus_address", MEMBER(prometheus.address),
       "Address at which each node serves these metrics over HTTP, such as 9464 (at loopback) or "
       "0.0.0.0:9464; port 0: a free one. Everybody who reaches the address can read them. none disables it"},
      {"run.price_per_kwh", MEMBER(price_per_kwh),
       "Price of a kilowatt-hour, in any currency, from which the cost of each epoch is reported. 0 disables "
       "it",
       kUpToAMillion},
      {"run.grace_seconds",
       MEMBER(checkpoints.grace_seconds),
       "Longest time in seconds to end the step and to save after a signal that stops the training",
       {.least = 0, .most = 1e6, .above_least = true}},
      {"profile.wait", MEMBER(profile.wait), "First steps of each cycle, which are not observed", kSteps},
      {"profile.warmup", MEMBER(profile.warmup), "Next steps of the cycle, which are observed and discarded",
       kSteps},
      {"profile.active",
       MEMBER(profile.active),
       "Last steps of the cycle, which are recorded: each rank writes a file that TensorBoard's "
       "torch-tb-profiler and Perfetto open. 0 disables profiling",
       {0, kMostProfiledSteps}},
      {"profile.repeat", MEMBER(profile.repeat), "Cycles of wait, warmup and active. 0: until training ends",
       kSteps},
      {"profile.dir", MEMBER(profile.dir), "Folder of the profiles. auto: the folder profile in run.dir"},
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
