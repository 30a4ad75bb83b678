// SPDX-License-Identifier: Apache-2.0
#include "data/formats/masks.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/formats/image_folder.h"
#include "data/formats/image_names.h"
#include "data/formats/readable_file.h"
#include "data/formats/split_words.h"
#include "data/images/common_shape.h"
#include "data/images/image_decoder.h"
#include "data/images/orientation.h"
#include "data/images/png.h"
#include "data/sets/wrapped.h"
#include "kernels/pixel_targets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char *kImages = "images", *kMasks = "masks";

bool is_mask_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// The folder that holds images/ and masks/ of the split. Logs the choice between several test splits, of
// which it takes the first with masks.
fs::path mask_folder_of(const DatasetOptions& options, Split split) {
  const fs::path root = options.path;
  std::vector<std::string> tried, found;
  for (const std::vector<std::string>& group : split_words(split, options.test_split)) {
    for (const std::string& word : group) {
      if (is_mask_folder(root / word / kImages)) found.push_back(word);
      tried.push_back(word);
    }
  }
  if (split == Split::test && options.test_split == "auto" && found.size() > 1) {
    const auto labelled = std::ranges::find_if(
        found, [&](const std::string& word) { return is_mask_folder(root / word / kMasks); });
    if (labelled != found.begin() && labelled != found.end()) {
      log_test_split(options.path, *labelled + "/", found[0] + "/", "folder masks/");
      return root / *labelled;
    }
    log_test_split(options.path, found[0] + "/", found[1] + "/");
  }
  if (!found.empty()) return root / found.front();
  if (split == Split::train && is_mask_folder(root / kImages)) return root;
  throw IoError(fmt::format(
      "{}: no folder {}/images; expected are images in train/images and test/images, and their masks (PNG "
      "files of the same names) in train/masks and test/masks{}",
      options.path, fmt::join(tried, "/images, "),
      split == Split::test ? "; without test images set data.validation_share" : ""));
}

std::vector<std::uint8_t> whole_file(const std::string& path) {
  const ReadableFile file(path);
  if (file.bytes() > static_cast<std::uint64_t>(kMostImageBytes))
    throw DataError(
        fmt::format("{}: the file has {} bytes; the limit is {} bytes", path, file.bytes(), kMostImageBytes));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.bytes()));
  file.read(0, bytes.data(), bytes.size());
  return bytes;
}

// Paths of the images and of their masks, sorted by name.
struct Pairs {
  std::vector<std::string> images, masks;
};

Pairs pairs_in(const fs::path& folder) {
  std::vector<fs::path> names;
  std::size_t skipped = 0, folders = 0;
  std::error_code error, unknown;
  fs::directory_iterator entry(folder / kImages, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path name = entry->path().filename();
    if (is_of_a_system(name.string())) continue;
    if (entry->is_directory(unknown)) {
      ++folders;
    } else if (is_image_name(name)) {
      names.push_back(name);
    } else {
      ++skipped;
    }
  }
  if (error)
    throw IoError(fmt::format("{}: cannot be read: {}", (folder / kImages).string(), error.message()));
  if (folders > 0)
    log::shared_warning("{}: {} in it {} not read; move their images, and their masks, out of them",
                        (folder / kImages).string(), counted(folders, "folder"), folders == 1 ? "is" : "are");
  if (names.empty())
    throw DataError(
        fmt::format("{}: no images (.jpg, .jpeg, .jpe, .jfif, .png)", (folder / kImages).string()));
  if (skipped > 0)
    log::info("{}: skipped {} without a suffix of JPEG or PNG images", (folder / kImages).string(),
              counted(skipped, "file"));
  std::ranges::sort(names);
  Pairs pairs;
  std::vector<std::string> without;
  std::set<fs::path> taken;
  for (const fs::path& name : names) {
    const fs::path mask = folder / kMasks / fs::path(name).replace_extension(".png");
    pairs.images.push_back((folder / kImages / name).string());
    pairs.masks.push_back(mask.string());
    if (!taken.insert(mask).second)
      throw DataError(fmt::format("{}: two images of {} have this mask; rename one of them", mask.string(),
                                  (folder / kImages).string()));
    if (!fs::exists(mask, error)) without.push_back(mask.string());
  }
  if (!without.empty()) {
    const std::string missing = fmt::format("{} of {} images have no mask; the first that is missing is {}",
                                            without.size(), names.size(), without.front());
    if (without.size() == names.size()) throw UnlabelledError(missing);
    throw DataError(missing);
  }
  return pairs;
}

class Masks final : public Wrapped {
 public:
  Masks(Pairs pairs, std::shared_ptr<const Dataset> images, const DatasetOptions& options)
      : Wrapped(std::move(images)),
        pairs_(std::move(pairs)),
        exif_(options.images.exif_orientation),
        classes_(options.masks.classes) {
    values_.fill(kNoClass);
    for (std::int64_t value = 0; value < classes_; ++value)
      values_[static_cast<std::size_t>(value)] = static_cast<std::int16_t>(value);
    values_[static_cast<std::size_t>(options.masks.ignore_index)] = kIgnoredPixel;
  }

  bool has_masks() const override { return true; }
  std::uint64_t key(std::int64_t index) const override {
    const std::string name = fs::path(image_of(index)).filename().string();
    return XXH3_64bits(name.data(), name.size());
  }

  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    decode_labels(index, open_mask(index, image_shape()), mask);
  }

  ImageShape read_own_mask(std::int64_t index, std::vector<std::uint8_t>& mask) const override {
    const MaskFile file = open_mask(index, own_shape(index));
    mask.resize(static_cast<std::size_t>(file.shown.bytes()));
    decode_labels(index, file, mask);
    return file.shown;
  }

  void probe(std::int64_t index) const override {
    dataset().probe(index);
    open_mask(index, own_shape(index));
  }

  // Covers all names and the bytes of some files, not pixels: decoders may differ in a pixel's last bit.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = 0;
    for (const std::string& path : pairs_.images) {
      const std::string name = fs::path(path).filename().string();
      hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
    }
    for (const std::int64_t index : some_samples(size(), 32))
      for (const std::string& path : {image_of(index), mask_of(index)}) hash = hash_of_file(path, hash);
    return hash;
  }

 private:
  static constexpr std::int16_t kNoClass = -1;

  struct MaskFile {
    std::vector<std::uint8_t> bytes;
    int orientation = 1;       // of the mask file; its image may have another
    ImageShape stored, shown;  // of one channel
  };

  const std::string& image_of(std::int64_t index) const {
    return pairs_.images[static_cast<std::size_t>(index)];
  }
  const std::string& mask_of(std::int64_t index) const {
    return pairs_.masks[static_cast<std::size_t>(index)];
  }

  // Throws DataError if mask and image, as shown, differ in size, and for a mask that is too large.
  MaskFile open_mask(std::int64_t index, const ImageShape& image) const {
    const std::string& name = mask_of(index);
    MaskFile mask;
    mask.bytes = whole_file(name);
    mask.stored = png_shape(name, mask.bytes);
    mask.stored.channels = 1;
    mask.shown = mask.stored;
    if (exif_ == ExifOrientation::apply) mask.orientation = exif_orientation(mask.bytes);
    if (swaps_sides(mask.orientation)) std::swap(mask.shown.height, mask.shown.width);
    if (mask.shown.height != image.height || mask.shown.width != image.width)
      throw DataError(fmt::format(
          "{}: the mask is {} pixels wide and {} high, its image {} wide and {} high; they must be equal",
          name, mask.shown.width, mask.shown.height, image.width, image.height));
    if (mask.stored.bytes() > kMostImageBytes) throw too_large(name, mask.stored);
    return mask;
  }

  void decode_labels(std::int64_t index, const MaskFile& file, std::span<std::uint8_t> mask) const {
    if (file.orientation == 1) {
      decode_png_values(mask_of(index), file.bytes, file.stored, mask);
    } else {
      std::vector<std::uint8_t> stored(mask.size());
      decode_png_values(mask_of(index), file.bytes, file.stored, stored);
      turn(stored, file.stored, file.orientation, mask);
    }
    for (std::uint8_t& pixel : mask) {
      const std::int16_t label = values_[pixel];
      if (label == kNoClass)
        throw DataError(fmt::format(
            "{}: a pixel has the value {}, which is neither a class (0 to {}, data.masks.classes = {}) nor "
            "data.masks.ignore_index",
            mask_of(index), pixel, classes_ - 1, classes_));
      pixel = static_cast<std::uint8_t>(label);
    }
  }

  Pairs pairs_;
  ExifOrientation exif_;
  std::int64_t classes_;
  std::array<std::int16_t, 256> values_;  // the label of a value
};

// Programs that choose the palette of each file number the same colours differently.
void warn_of_palettes(const std::vector<std::string>& masks) {
  struct Colour {
    std::array<std::uint8_t, 3> bytes;
    std::string mask;
  };
  constexpr std::int64_t kMasksLookedAt = 8;
  std::map<std::size_t, Colour> known;  // by value: its colour in the first mask that uses it
  for (const std::int64_t index : some_samples(std::ssize(masks), kMasksLookedAt)) {
    const std::string& mask = masks[static_cast<std::size_t>(index)];
    try {
      const std::vector<std::uint8_t> file = whole_file(mask), palette = png_palette(mask, file);
      const ImageShape shape = png_shape(mask, file);
      if (palette.empty() || shape.height * shape.width > kMostImageBytes) continue;
      std::vector<std::uint8_t> values(static_cast<std::size_t>(shape.height * shape.width));
      decode_png_values(mask, file, shape, values);
      std::array<bool, 256> used = {};
      for (const std::uint8_t value : values) used[value] = true;
      for (std::size_t value = 0; 3 * value < palette.size(); ++value) {
        if (!used[value]) continue;
        const std::array<std::uint8_t, 3> colour = {palette[3 * value], palette[3 * value + 1],
                                                    palette[3 * value + 2]};
        const Colour& first = known.try_emplace(value, Colour{colour, mask}).first->second;
        if (first.bytes == colour) continue;
        log::shared_warning(
            "{} and {}: the value {} has different colours in their palettes; classes are values and not "
            "colours, so write all masks with one palette",
            first.mask, mask, value);
        return;
      }
    } catch (const DataError&) {  // reported when the mask is read
    } catch (const IoError&) {
    }
  }
}

}  // namespace

std::unique_ptr<Dataset> open_masks(const DatasetOptions& options, Split split) {
  if (options.masks.classes < 1)
    throw ConfigError(
        "data.masks.classes is missing: set the number of classes of the masks' pixels, which are 0, 1, 2 "
        "and so on");
  if (options.masks.classes > kMostMaskClasses || options.masks.ignore_index < 0 ||
      options.masks.ignore_index > kIgnoredPixel) {
    throw ConfigError(
        fmt::format("data.masks.classes = {} and data.masks.ignore_index = {}: allowed are at most {} "
                    "classes, and a value from 0 to {}",
                    options.masks.classes, options.masks.ignore_index, kMostMaskClasses, kIgnoredPixel));
  }
  std::optional<log::Quiet> quiet;
  if (split == Split::test) quiet.emplace();  // opening the training split logs about its files
  const Pairs training = pairs_in(mask_folder_of(options, Split::train));
  quiet.reset();
  Pairs pairs = split == Split::train ? training : pairs_in(mask_folder_of(options, split));
  const ExifOrientation exif = options.images.exif_orientation;
  const std::vector<std::int64_t> some = some_samples(std::ssize(training.images), kImagesLookedAt);
  const std::unique_ptr<Dataset> any =
      open_image_list(training.images, {.height = 1, .width = 1, .channels = 3}, {.exif = exif});
  const ImageShape shape = common_shape(options, split, std::ssize(some), [&](std::int64_t at) {
    return any->own_shape(some[static_cast<std::size_t>(at)]);
  });
  if (shape.bytes() > kMostImageBytes)
    throw DataError(fmt::format("{}: images of {}x{} pixels are too large to train on; set data.resize",
                                options.path, shape.width, shape.height));
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < options.masks.classes; ++i) names.push_back(std::to_string(i));
  auto masks = std::make_unique<Masks>(
      pairs,
      open_image_list(pairs.images, shape,
                      {.exif = exif, .classes = std::move(names), .any_size = options.resize.size > 0}),
      options);
  if (split == Split::train) warn_of_palettes(pairs.masks);
  return masks;
}

}  // namespace lockstep
