// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/training_data.h"

#include <algorithm>

#include "core/error.h"
#include "data/device_batches.h"
#include "data/sets/set_checks.h"
#include "data/sets/verify.h"
#include "kernels/host_augmentation.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/setup/engine_options.h"

namespace lockstep {
namespace {

// Rows of a table are already scaled, and cannot be cropped or mirrored.
void check_images(const Config& config, const Dataset& dataset) {
  if (dataset.image_shape().type == DType::u8) return;
  const auto need = [](bool right, std::string_view allowed) {
    if (right) return;
    throw ConfigError(
        fmt::format("set {}: samples that are rows of a table are not normalised or augmented", allowed));
  };
  const Augmentation& augmentation = config.network.augmentation;
  need(config.network.mean.empty(), "data.mean = []");
  need(config.network.deviation.empty(), "data.deviation = []");
  need(augmentation.crop_padding == 0, "data.crop_padding = 0");
  need(!augmentation.horizontal_flip, "data.horizontal_flip = false");
  need(!augmentation.color.any(), "data.brightness, data.contrast, data.saturation and data.hue to 0");
  need(augmentation.cutout == 0, "data.cutout = 0");
  need(augmentation.random_erasing == 0, "data.random_erasing = 0");
  need(augmentation.mixup == 0, "data.mixup = 0");
  need(augmentation.cutmix == 0, "data.cutmix = 0");
}

// A mask moves with its image only on the host, and labels of pixels are not mixed.
void check_masks(const Config& config, const Dataset& dataset) {
  if (!dataset.has_masks()) return;
  const Augmentation& augmentation = config.network.augmentation;
  if (augmentation.mixes())
    throw ConfigError("data.mixup and data.cutmix: allowed is 0 for images with masks");
  if (!config.augments_on_host() && (augmentation.crop_padding > 0 || augmentation.horizontal_flip))
    throw ConfigError(
        "set data.augment_on = \"host\": data.crop_padding and data.horizontal_flip move masks with their "
        "images only on the host");
}

void check_channels(const Config& config, const Dataset& dataset) {
  const auto channels = static_cast<std::size_t>(dataset.image_shape().channels);
  const std::size_t values = std::max(config.network.mean.size(), config.network.deviation.size());
  if (values != 0 && values != channels) {
    throw ConfigError(fmt::format(
        "data.mean and data.deviation have {} values, but images have {} channels; set one value per channel",
        values, channels));
  }
}

}  // namespace

void verify_sets(const Config& config, const Datasets& sets, const World& world, int threads) {
  VerifyOptions each = config.verify;
  each.shard = {.rank = world.local_rank(), .size = world.local_size()};  // each node has its own copy
  each.threads = threads;
  for (const Dataset* set : {sets.train.get(), sets.test.get()}) {
    ProgressMeter meter("verifying", "images", find_terminal());
    if (world.rank() == 0)
      each.told_progress = [&](std::int64_t done, std::int64_t all) { meter.show(done, all); };
    verify(*set, each);
  }
}

TrainingData::TrainingData(const Config& config, const std::vector<DatasetFormat>& formats,
                           const World& world, Device device, const ThreadChoice& choice,
                           const Datasets& opened)
    : options(loader_options(config, device)), sets(opened) {
  options.most_threads = choice.cores;
  if (sets.train == nullptr) open(config, formats, world, choice.threads);
  if (!config.augments_on_host()) return;
  const ImageShape image = sets.train->image_shape();
  Augmentation augmentation = config.network.augmentation;
  augmentation.key = augmentation_key(config.network.seed);
  options.augmentation =
      std::make_shared<HostAugmentation>(augmentation, image.height, image.width, image.channels);
}

void TrainingData::make_loaders(const World& world) {
  const Shard shard{.rank = world.rank(), .size = world.size()};
  train_loader = std::make_unique<BatchLoader>(*sets.train, shard, options);
  LoaderOptions test = options;
  test.accumulation = 1;
  test.tail = Tail::pad;
  test.augmentation = nullptr;
  test_loader = std::make_unique<BatchLoader>(*sets.test, shard, test);
}

void TrainingData::open(const Config& config, const std::vector<DatasetFormat>& formats, const World& world,
                        int threads) {
  const auto& [train_set, test_set] = sets = {.train = open_dataset(config.dataset, Split::train, formats),
                                              .test = open_dataset(config.dataset, Split::test, formats)};
  if (test_set->image_shape() != train_set->image_shape() || test_set->classes() > train_set->classes()) {
    const ImageShape train = train_set->image_shape(), test = test_set->image_shape();
    throw DataError(fmt::format(
        "{}: test samples of {}x{}x{} in {} classes do not fit training samples of {}x{}x{} in {} classes",
        config.dataset.path, test.height, test.width, test.channels, test_set->classes(), train.height,
        train.width, train.channels, train_set->classes()));
  }
  check_images(config, *train_set);
  check_masks(config, *train_set);
  check_channels(config, *train_set);
  if (config.verify.extent != Verify::all) verify_sets(config, sets, world, threads);
  const auto format = std::ranges::find(formats, config.dataset.format, &DatasetFormat::name);
  if (world.rank() == 0 && format->has_files) tell_of_sets(*train_set, *test_set, config.dataset.path);
}

std::size_t TrainingData::device_bytes(std::int64_t batch, Device device) const {
  const std::size_t bytes = static_cast<std::size_t>(batch) *
                            (train_loader->batch_bytes() + train_loader->gathered_bytes()) /
                            static_cast<std::size_t>(options.batch);
  const auto copies = [&](std::int64_t micro_batches) {
    return DeviceBatches::planned_bytes({.device = device, .micro_batches = micro_batches}, bytes);
  };
  return copies(options.accumulation) + copies(1);
}

}  // namespace lockstep
