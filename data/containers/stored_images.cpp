// SPDX-License-Identifier: Apache-2.0
#include "data/containers/stored_images.h"

#include <algorithm>
#include <optional>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "core/log.h"
#include "data/containers/unpacked_file.h"
#include "data/formats/readable_file.h"
#include "data/images/common_shape.h"
#include "data/images/image_decoder.h"
#include "data/sets/damage_log.h"

namespace lockstep {
namespace {

struct IndexedFile {
  std::filesystem::path path;
  std::vector<StoredImage> images;
};

// Checks all labels and returns the images per label; empty if there is no image.
std::vector<std::int64_t> counts_of(const std::vector<IndexedFile>& files) {
  std::vector<std::int64_t> counts;
  for (const IndexedFile& file : files) {
    for (const StoredImage& image : file.images) {
      if (image.label < 0 || image.label >= kMostLabels) {
        const std::string wrong = fmt::format("{}: at byte {}: label {}: allowed are 0 to {}",
                                              file.path.string(), image.offset, image.label, kMostLabels - 1);
        if (image.label < 0) throw UnlabelledError(wrong);
        throw DataError(wrong);
      }
      const auto label = static_cast<std::size_t>(image.label);
      if (label >= counts.size()) counts.resize(label + 1);
      ++counts[label];
    }
  }
  return counts;
}

class StoredImages final : public Dataset {
 public:
  // test: empty to open the training split.
  StoredImages(const DatasetOptions& options, std::vector<IndexedFile> train, std::vector<IndexedFile> test)
      : any_size_(options.resize.size > 0), exif_(options.images.exif_orientation) {
    const std::vector<std::int64_t> trained = counts_of(train);
    if (trained.empty())
      throw DataError(fmt::format("{}: the training files contain no images", train.front().path.string()));
    shape_ = shape_of_most(options, train, test.empty() ? Split::train : Split::test);
    files_ = test.empty() ? std::move(train) : std::move(test);
    counts_ = counts_of(files_);
    if (counts_.empty())
      throw DataError(fmt::format("{}: the file contains no images", files_.front().path.string()));
    if (counts_.size() > trained.size()) {
      throw DataError(fmt::format("{}: label {}, but the largest training label is {}",
                                  files_.front().path.string(), counts_.size() - 1, trained.size() - 1));
    }
    counts_.resize(trained.size());
    if (shape_.bytes() > kMostImageBytes) throw too_large(files_.front().path.string(), shape_);
    for (const IndexedFile& file : files_) {
      open_.emplace_back(file.path);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + std::ssize(file.images));
    }
  }

  std::int64_t size() const override { return ends_.back(); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return std::ssize(counts_); }
  std::optional<std::int32_t> label(std::int64_t index) const override { return find(index).image.label; }
  std::vector<std::int64_t> class_counts() const override { return counts_; }
  ImageCoding coding() const override { return ImageCoding::file; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(static_cast<std::int64_t>(image.size()) == shape_.bytes(), "{} bytes into {}", shape_.bytes(),
          image.size());
    const Opened opened = open_sample(index, HeaderCheck::size);
    ImageDecoder::of_this_thread().decode(shape_, image);
    look_for_damage(index);
    return opened.label;
  }

  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    const Opened opened = open_sample(index, HeaderCheck::size);
    if (opened.shape.bytes() > kMostImageBytes) throw too_large(find(index).name(), opened.shape);
    decode_own_size(opened.shape, shape_.channels, least, image);
    look_for_damage(index);
    return opened.label;
  }

  ImageShape own_shape(std::int64_t index) const override {
    return open_sample(index, HeaderCheck::size).shape;
  }
  void probe(std::int64_t index) const override { open_sample(index, HeaderCheck::whole); }

  std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const override {
    return open_sample(index, HeaderCheck::size, bytes).label;
  }

  // Covers all places, labels and checksums, and the bytes of some images without a checksum.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = 0;
    for (const IndexedFile& file : files_)
      hash = XXH3_64bits_withSeed(file.images.data(), file.images.size() * sizeof(StoredImage), hash);
    std::vector<std::uint8_t> bytes;
    for (const std::int64_t index : some_samples(size(), 32)) {
      const Place at = find(index);
      if (at.image.has_crc != 0) continue;
      load(at, bytes);
      hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
    }
    return hash;
  }
  std::int64_t damaged() const override { return damage_.count(); }
  std::size_t memory_bytes() const override { return static_cast<std::size_t>(size()) * sizeof(StoredImage); }

 private:
  struct Place {
    const StoredImage& image;
    const ReadableFile& file;
    std::string name() const { return fmt::format("{}: at byte {}", file.name(), image.offset); }
  };
  struct Opened {
    std::int32_t label;
    ImageShape shape;  // the image's own
  };

  static ImageShape shape_of_most(const DatasetOptions& options, const std::vector<IndexedFile>& files,
                                  Split split) {
    std::vector<std::pair<const IndexedFile*, const StoredImage*>> all;
    for (const IndexedFile& file : files)
      for (const StoredImage& image : file.images) all.emplace_back(&file, &image);
    const std::vector<std::int64_t> some = some_samples(std::ssize(all), kImagesLookedAt);
    std::vector<std::uint8_t> bytes;
    return common_shape(options, split, std::ssize(some), [&](std::int64_t at) {
      const auto& [file, image] = all[static_cast<std::size_t>(some[static_cast<std::size_t>(at)])];
      const ReadableFile readable(file->path);
      const Place place{.image = *image, .file = readable};
      load(place, bytes);
      return ImageDecoder::of_this_thread().open(place.name(), bytes, options.images.exif_orientation);
    });
  }

  Place find(std::int64_t index) const {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    const auto file = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    const std::int64_t within = index - (file == 0 ? 0 : ends_[file - 1]);
    return {.image = files_[file].images[static_cast<std::size_t>(within)], .file = open_[file]};
  }

  static void load(const Place& at, std::vector<std::uint8_t>& bytes) {
    if (at.image.bytes > kMostImageBytes)
      throw DataError(fmt::format("{}: the image has {} bytes; the limit is {}", at.name(), at.image.bytes,
                                  kMostImageBytes));
    bytes.resize(at.image.bytes);
    at.file.read(at.image.offset, bytes.data(), bytes.size());
    if (at.image.has_crc != 0 &&
        crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) != at.image.crc)
      throw DataError(fmt::format("{}: the image has changed since the file was indexed", at.name()));
  }

  // Opens the sample in this thread's decoder.
  Opened open_sample(std::int64_t index, HeaderCheck check) const {
    thread_local std::vector<std::uint8_t> bytes;
    return open_sample(index, check, bytes);
  }
  Opened open_sample(std::int64_t index, HeaderCheck check, std::vector<std::uint8_t>& bytes) const {
    const Place at = find(index);
    load(at, bytes);
    const ImageShape found = ImageDecoder::of_this_thread().open(at.name(), bytes, exif_, check);
    if (!any_size_ && (found.height != shape_.height || found.width != shape_.width))
      throw of_another_size(at.name(), found, shape_);
    return {.label = at.image.label, .shape = found};
  }

  void look_for_damage(std::int64_t index) const {
    const std::string_view warning = ImageDecoder::of_this_thread().warning();
    if (warning.empty()) return;
    damage_.add(index,
                fmt::format("{}: damaged, and decoded as far as possible: {}", find(index).name(), warning));
  }

  bool any_size_;
  ExifOrientation exif_;
  std::vector<IndexedFile> files_;
  std::vector<ReadableFile> open_;
  std::vector<std::int64_t> ends_;  // of each file, in samples
  std::vector<std::int64_t> counts_;
  ImageShape shape_;
  mutable DamageLog damage_{"damaged and decoded as far as possible"};
};

}  // namespace

std::unique_ptr<Dataset> open_container(const DatasetOptions& options, Split split,
                                        const ContainerFormat& format) {
  const auto indexed = [&](Split wanted) {
    std::optional<log::Quiet> quiet;
    if (wanted != split) quiet.emplace();  // opening the other split logs about its files
    const std::vector<std::filesystem::path> found = split_files(options, wanted, format.names);
    quiet.reset();
    std::vector<IndexedFile> files;
    for (const std::filesystem::path& named : found) {
      const std::filesystem::path path = unpacked_file(named);
      files.push_back({.path = path, .images = format.index(path, wanted)});
      if (wanted == split && files.back().images.empty())
        log::shared_warning("{}: the file has no samples", named.string());
    }
    return files;
  };
  std::vector<IndexedFile> train = indexed(Split::train), test;
  if (split == Split::test) test = indexed(Split::test);
  return std::make_unique<StoredImages>(options, std::move(train), std::move(test));
}

}  // namespace lockstep
