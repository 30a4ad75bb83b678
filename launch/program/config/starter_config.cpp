// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/starter_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "data/sample_order.h"
#include "data/sets/damage_log.h"
#include "launch/program/config/config_keys.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSampled = 1000;
constexpr std::int64_t kSmallHeight = 40;  // up to it ResNet-20, which was made for 32
constexpr double kFlat = 1.0 / 255;        // with a smaller deviation the images have one colour

std::vector<double> rounded(std::vector<double> values) {
  for (double& value : values) value = std::round(value * 1e4) / 1e4;
  return values;
}

// A power of two that fits 16 times into the training set, from 8 to 64, but at most half of the
// images, for 2 ranks.
std::int64_t starter_batch(std::int64_t images) {
  const auto power_below = [](std::int64_t value) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
  };
  return std::min(std::clamp<std::int64_t>(power_below(std::max<std::int64_t>(images / 16, 1)), 8, 64),
                  power_below(std::max<std::int64_t>(images / 2, 1)));
}

std::int64_t starter_epochs(std::int64_t steps_per_epoch) {
  constexpr std::int64_t kSteps = 3000;
  return std::clamp<std::int64_t>(kSteps / steps_per_epoch, 15, 100);
}

std::string test_part(const ImageSummary& summary) {
  if (summary.validation_share == 0) return "";
  return fmt::format("validation_share = {}  # this share of the training images is used for testing only\n",
                     summary.validation_share);
}

// The augmentation keys of [data], before horizontal_flip.
std::string augmentation(const ImageSummary& summary) {
  if (summary.resized) {
    return fmt::format(
        R"(# Images differ in size and are resized to this one; training takes a random part of each.
# horizontal_flip mirrors half of them: not for digits, letters and other images whose mirror image is
# another class.
resize = {}
random_resized_crop = true
center_crop = 0.875  # share of the shorter side that is used for testing
)",
        summary.shape.height);
  }
  return fmt::format(
      R"(# Training images are moved by up to this number of pixels. horizontal_flip mirrors half of them:
# not for digits, letters and other images whose mirror image is another class.
crop_padding = {}
)",
      std::max<std::int64_t>(summary.shape.height / 8, 1));
}

}  // namespace

std::int64_t size_for(const Dataset& dataset) {
  constexpr std::int64_t kSizes[] = {224, 192, 160, 128, 96, 64, 32};
  std::vector<std::int64_t> shorter;
  bool differ = false;
  ImageShape first;
  for (const std::int64_t index : some_samples(dataset.size(), kSampled)) {
    const ImageShape shape = dataset.own_shape(index);
    if (shorter.empty()) first = shape;
    differ = differ || shape.height != first.height || shape.width != first.width;
    shorter.push_back(std::min(shape.height, shape.width));
  }
  if (!differ) return 0;
  const auto middle = shorter.begin() + std::ssize(shorter) / 2;
  std::ranges::nth_element(shorter, middle);
  const auto* size = std::ranges::find_if(kSizes, [&](std::int64_t each) { return each <= *middle; });
  return size == std::end(kSizes) ? kSizes[std::size(kSizes) - 1] : *size;
}

ImageSummary summarize(const Dataset& dataset) {
  ImageSummary summary{
      .images = dataset.size(), .classes = dataset.classes(), .shape = dataset.image_shape()};
  const auto channels = static_cast<std::size_t>(summary.shape.channels);
  std::vector<std::uint64_t> sum(channels), squares(channels);  // exact for 2^48 pixels
  std::vector<std::uint8_t> image(static_cast<std::size_t>(summary.shape.bytes()));
  const SampleOrder order(summary.images, 1, 0);
  const std::int64_t sampled = std::min(summary.images, kSampled);
  DamageLog damage("left out of the mean and the deviation");
  for (std::int64_t i = 0; i < sampled; ++i) {
    try {
      dataset.read(order(i), image);
    } catch (const DataError& error) {
      if (damage.count() + 1 == sampled) throw;
      damage.add(order(i), fmt::format("{}; the image is left out of the mean and the deviation; repair or "
                                       "remove it",
                                       error.what()));
      continue;
    }
    for (std::size_t at = 0; at < image.size(); ++at) {
      const std::uint64_t value = image[at];
      sum[at % channels] += value;
      squares[at % channels] += value * value;
    }
  }
  const double pixels =
      static_cast<double>((sampled - damage.count()) * summary.shape.height * summary.shape.width);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const double mean = static_cast<double>(sum[channel]) / pixels;
    const double variance = std::max(static_cast<double>(squares[channel]) / pixels - mean * mean, 0.0);
    const double deviation = std::sqrt(variance) / 255;
    summary.mean.push_back(mean / 255);
    summary.deviation.push_back(deviation < kFlat ? 1 : deviation);
  }
  return summary;
}

std::string starter_config(const ImageSummary& summary, const std::filesystem::path& folder,
                           const std::string& run_name) {
  const ImageShape& shape = summary.shape;
  const bool colour = shape.channels == 3;
  const std::int64_t batch = starter_batch(summary.images);
  return fmt::format(
      R"(# {} training images of {} classes, {} x {} pixels, {}. All other keys: lockstep keys
[model]
name = {}  # other networks: lockstep keys

[data]
format = "image_folder"
path = {}
{}# Measured over the images, for pixels in [0, 1].
mean = [{}]
deviation = [{}]
{}horizontal_flip = {}
loader_threads = 2

[train]
batch = {}  # per rank; a larger batch is faster and needs more memory
epochs = {}

[optimizer]
# The learning rate is chosen to suit network and batch, after an epoch of warm-up:
# lockstep train THIS_FILE --print-config prints it.
name = "sgd"
momentum = 0.9
weight_decay = 5e-4

[schedule]
name = "cosine"

[run]
dir = {}
)",
      summary.images, summary.classes, shape.width, shape.height, colour ? "colour" : "gray",
      detail::quoted(std::max(shape.height, shape.width) <= kSmallHeight ? "resnet20" : "resnet18"),
      detail::quoted(folder.string()), test_part(summary), fmt::join(rounded(summary.mean), ", "),
      fmt::join(rounded(summary.deviation), ", "), augmentation(summary), colour, batch,
      starter_epochs(std::max<std::int64_t>(summary.images / batch, 1)), detail::quoted("runs/" + run_name));
}

}  // namespace lockstep
