// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/named_entries.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/containers/tfrecord.h"
#include "data/containers/webdataset.h"
#include "data/formats/cifar.h"
#include "data/formats/csv.h"
#include "data/formats/drug_trial.h"
#include "data/formats/idx.h"
#include "data/formats/image_folder.h"
#include "data/formats/masks.h"
#include "data/formats/shapes.h"
#include "data/formats/synthetic.h"
#include "data/hdf5/hdf5_images.h"
#include "data/images/png.h"
#include "data/images/resized.h"
#include "data/records/records.h"
#include "data/sets/subset.h"

namespace lockstep {

std::vector<std::int64_t> Dataset::class_counts() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(classes()));
  for (std::int64_t index = 0; index < size(); ++index) {
    const std::optional<std::int32_t> known = label(index);
    if (!known) return {};
    CHECK(*known >= 0 && *known < classes(), "sample {} has label {}, but there are {} classes", index,
          *known, classes());
    ++counts[static_cast<std::size_t>(*known)];
  }
  return counts;
}

std::int32_t Dataset::read_stored(std::int64_t, std::vector<std::uint8_t>&) const {
  CHECK(false, "read_stored() was called for a dataset of pixels");
  return 0;
}

void Dataset::read_mask(std::int64_t, std::span<std::uint8_t>) const {
  CHECK(false, "read_mask() was called for a dataset without masks");
}

ImageShape Dataset::read_own_mask(std::int64_t index, std::vector<std::uint8_t>& mask) const {
  const ImageShape shape = image_shape();
  mask.resize(static_cast<std::size_t>(shape.height * shape.width));
  read_mask(index, mask);
  return shape;
}

std::int32_t Dataset::read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const {
  image.shape = image.whole = image_shape();
  image.reduction = 1;
  least(image.whole);
  image.pixels.resize(static_cast<std::size_t>(image.whole.bytes()));
  return read(index, image.pixels);
}

std::uint64_t Dataset::content_hash(std::int64_t index) const {
  thread_local std::vector<std::uint8_t> bytes;
  if (coding() == ImageCoding::file) {
    read_stored(index, bytes);
  } else {
    bytes.resize(static_cast<std::size_t>(image_shape().bytes()));
    read(index, bytes);
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t Dataset::fingerprint() const {
  std::vector<std::uint8_t> image(static_cast<std::size_t>(image_shape().bytes())), mask;
  std::uint64_t hash = 0;
  for (const std::int64_t index : some_samples(size(), 32)) {
    try {
      const std::int32_t label = read(index, image);
      hash = XXH3_64bits_withSeed(&label, sizeof(label), hash);
      hash = XXH3_64bits_withSeed(image.data(), image.size(), hash);
      if (!has_masks()) continue;
      mask.resize(static_cast<std::size_t>(image_shape().height * image_shape().width));
      read_mask(index, mask);
      hash = XXH3_64bits_withSeed(mask.data(), mask.size(), hash);
    } catch (const DataError&) {  // reported when the sample is read
      hash = XXH3_64bits_withSeed(&index, sizeof(index), hash);
    }
  }
  return hash;
}

std::string counted_images(const Dataset& train, const Dataset& test) {
  const ImageShape shape = train.image_shape();
  if (shape.type != DType::u8) {
    return fmt::format("{} training and {} test rows of {} in {} classes", train.size(), test.size(),
                       counted(shape.width, "number"), train.classes());
  }
  return fmt::format("{} training and {} test images of {}x{}x{} {} {} classes", train.size(), test.size(),
                     shape.height, shape.width, shape.channels, train.has_masks() ? "with masks of" : "in",
                     train.classes());
}

std::string sizes_of_images(const Dataset& images) {
  std::optional<ImageShape> least, most;
  for (const std::int64_t index : some_samples(images.size(), 1000)) {
    try {
      const ImageShape own = images.own_shape(index);
      if (!least) least = most = own;
      *least = {.height = std::min(least->height, own.height), .width = std::min(least->width, own.width)};
      *most = {.height = std::max(most->height, own.height), .width = std::max(most->width, own.width)};
    } catch (const DataError&) {  // reported when the image is read
    }
  }
  if (!least) return {};
  const auto range = [](std::int64_t from, std::int64_t to) {
    return from == to ? fmt::format("{}", from) : fmt::format("{} to {}", from, to);
  };
  return fmt::format("{} high and {} wide", range(least->height, most->height),
                     range(least->width, most->width));
}

std::string summary_of(const Dataset& train, const Dataset& test) {
  const std::vector<std::int64_t> counts = train.class_counts();
  std::string images = counted_images(train, test);
  if (train.resizes()) {
    const std::string sizes = sizes_of_images(train);
    if (!sizes.empty()) images += ", resized from images " + sizes;
  }
  if (counts.empty()) return images;
  const auto least = std::ranges::min_element(counts), most = std::ranges::max_element(counts);
  if (*least == *most) return fmt::format("{}, {} of each", images, *least);
  const auto name = [&, names = train.class_names()](auto place) {
    const std::ptrdiff_t label = place - counts.begin();
    return names.empty() ? fmt::format("class {}", label) : names[static_cast<std::size_t>(label)];
  };
  return fmt::format("{}, from {} ({}) to {} ({}) of each", images, *least, name(least), *most, name(most));
}

std::vector<std::int64_t> some_samples(std::int64_t size, std::int64_t wanted) {
  const std::int64_t count = std::min(size, wanted);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(count == 1 ? 0 : i * (size - 1) / (count - 1));
  return indices;
}

const std::vector<DatasetFormat>& dataset_formats() {
  using Options = DatasetOptions;
  static const std::vector<DatasetFormat> table = {
      {"idx", [](const Options& options, Split split) { return open_idx(options.path, split); }},
      {"cifar_binary", [](const Options& options, Split split) { return open_cifar(options.path, split); }},
      {"image_folder", open_image_folder},
      {"tfrecord", open_tfrecord},
      {"webdataset", open_webdataset},
      {"records", open_records},
      {"hdf5", open_hdf5},
      {"csv", open_csv},
      {"synthetic",
       [](const Options& options, Split split) { return open_synthetic(options.synthetic, split); }, false},
      {"drug_trial", [](const Options&, Split split) { return open_drug_trial(split); }, false},
      {"masks", open_masks},
      {"shapes", [](const Options&, Split split) { return open_shapes(split); }, false}};
  return table;
}

namespace {

// Number of image files examined; 0 if look() returns false for one of them.
template <typename Look>
std::int64_t examined_files(const Dataset& dataset, Look look) {
  std::int64_t count = 0;
  if (dataset.coding() != ImageCoding::file) return count;
  std::vector<std::uint8_t> bytes;
  for (const std::int64_t index : some_samples(dataset.size(), 8)) {
    try {
      dataset.read_stored(index, bytes);
      if (!look(bytes)) return 0;
      ++count;
    } catch (const DataError&) {  // reported when the image is read
    } catch (const IoError&) {
    }
  }
  return count;
}

// Glyphs and icons often have all of their content in the transparency, which is not read.
void warn_of_transparency(const Dataset& dataset, const std::string& path) {
  const std::int64_t count = examined_files(dataset, [&](const std::vector<std::uint8_t>& bytes) {
    return varies_in_transparency_only(path, bytes);
  });
  if (count == 0) return;
  log::shared_warning(
      "{}: each of {} examined training images has one colour only, because its content is in its "
      "transparency, which is not read; write the images on a background of another colour",
      path, count);
}

// 10- or 12-bit values in 16-bit files become only a few 8-bit levels. A file does not say how many bits are
// used; the check infers it from 8 images whose values are all below 2^12.
void warn_of_low_values(const Dataset& dataset, const std::string& path) {
  constexpr std::uint32_t kLow = 1u << 12;
  std::uint32_t largest = 0;
  const std::int64_t count = examined_files(dataset, [&](const std::vector<std::uint8_t>& bytes) {
    const std::optional<std::uint32_t> here = largest_16_bit_gray(path, bytes);
    largest = std::max(largest, here.value_or(0));
    return here.has_value();
  });
  if (count == 0 || largest == 0 || largest >= kLow) return;
  log::shared_warning(
      "{}: 16-bit grayscale PNG images use values up to {} of 65535, so only {} of 256 levels remain as 8 "
      "bits; write the files with values scaled to the whole range (10 bits: times 64)",
      path, largest, (largest + 128) / 257 + 1);
}

std::unique_ptr<Dataset> open_split(const DatasetFormat& format, const DatasetOptions& options, Split split) {
  try {
    return format.open(options, split);
  } catch (const UnlabelledError& error) {
    if (split == Split::train) throw;
    throw DataError(fmt::format(
        "{}; for test samples without labels set data.test_split to use others, or data.validation_share to "
        "test with a part of the training samples",
        error.what()));
  }
}

std::unique_ptr<Dataset> in_own_sizes(const DatasetFormat& format, const DatasetOptions& options,
                                      Split split) {
  const double share = options.validation_share;
  std::optional<log::Quiet> quiet;
  if (share > 0 && split == Split::test) quiet.emplace();  // the training split logs about the same files
  std::unique_ptr<Dataset> dataset = open_split(format, options, share > 0 ? Split::train : split);
  if (split == Split::train) {
    warn_of_low_values(*dataset, options.path);
    warn_of_transparency(*dataset, options.path);
  }
  if (share > 0) dataset = side_of(std::move(dataset), split, share);
  return dataset;
}

std::unique_ptr<Dataset> made_one_size(std::unique_ptr<Dataset> dataset, const DatasetOptions& options) {
  if (options.resize.size == 0) return dataset;
  if (dataset->image_shape().type != DType::u8) {
    throw ConfigError(fmt::format(
        "data.resize = {}: rows of a table cannot be resized; allowed is 0 with data.format = \"{}\"",
        options.resize.size, options.format));
  }
  if (dataset->has_masks() && options.resize.random_crop)
    throw ConfigError(
        "data.random_resized_crop = true: allowed is false for images with masks, which are only resized");
  return resized(std::move(dataset), options.resize);
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options, Split split,
                                      const std::vector<DatasetFormat>& formats) {
  return made_one_size(open_in_own_sizes(options, split, formats), options);
}

std::unique_ptr<Dataset> open_in_own_sizes(const DatasetOptions& options, Split split,
                                           const std::vector<DatasetFormat>& formats) {
  for (const DatasetFormat& format : formats)
    if (format.name == options.format) return in_own_sizes(format, options, split);
  throw ConfigError(fmt::format("data.format = \"{}\": allowed are {}", options.format,
                                fmt::join(names_in(formats), ", ")));
}

}  // namespace lockstep
