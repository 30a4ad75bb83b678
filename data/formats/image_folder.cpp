// SPDX-License-Identifier: Apache-2.0
#include "data/formats/image_folder.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/formats/image_names.h"
#include "data/formats/readable_file.h"
#include "data/images/common_shape.h"
#include "data/images/image_decoder.h"
#include "data/images/orientation.h"
#include "data/images/png.h"
#include "data/sets/damage_log.h"
#include "kernels/pixel_targets.h"

namespace lockstep {
namespace {

// The bytes of one open file. Each thread has one object and reuses its memory.
class FileBytes {
 public:
  static FileBytes& of_this_thread() {
    thread_local FileBytes bytes;
    return bytes;
  }

  void open(const std::string& path) {
    file_.emplace(path);
    size_ = 0;
    if (file_->bytes() > static_cast<std::uint64_t>(kMostImageBytes)) {
      throw DataError(fmt::format("{}: the file has {} bytes; the limit for an image is {} bytes", path,
                                  file_->bytes(), kMostImageBytes));
    }
  }

  // The first `end` bytes or more, at most the whole file.
  std::span<const std::uint8_t> first(std::size_t end) {
    end = std::min(end, file_size());
    if (bytes_.size() < end) bytes_.resize(end);
    if (size_ < end) file_->read(size_, bytes_.data() + size_, end - size_);
    size_ = std::max(size_, end);
    return std::span(bytes_).first(size_);
  }
  std::span<const std::uint8_t> all() { return first(file_size()); }
  // The last `count` bytes, at most the whole file.
  std::span<const std::uint8_t> last(std::size_t count) {
    end_.resize(std::min(count, file_size()));
    file_->read(file_size() - end_.size(), end_.data(), end_.size());
    return end_;
  }
  std::size_t file_size() const { return static_cast<std::size_t>(file_->bytes()); }

 private:
  std::optional<ReadableFile> file_;
  std::vector<std::uint8_t> bytes_;  // grows to the largest file; size_ bytes are valid
  std::size_t size_ = 0;
  std::vector<std::uint8_t> end_;
};

enum class Extent { header, whole };

// Reads the whole file, or as much as its shape needs, and returns the shape.
ImageShape open_file(const std::string& path, ExifOrientation exif, Extent extent) {
  constexpr std::size_t kMostHeaders = std::size_t{64} << 10;
  FileBytes& bytes = FileBytes::of_this_thread();
  ImageDecoder& decoder = ImageDecoder::of_this_thread();
  bytes.open(path);
  if (extent == Extent::header && bytes.file_size() > kMostHeaders) {
    const std::span<const std::uint8_t> first = bytes.first(kMostHeaders);
    const std::span<const std::uint8_t> last =
        is_png(first) ? bytes.last(kLateExifBytes) : std::span<const std::uint8_t>();
    if (const auto shape = decoder.open_part(path, first, last, exif)) return *shape;
  }
  return decoder.open(path, bytes.all(), exif,
                      extent == Extent::header ? HeaderCheck::whole : HeaderCheck::size);
}

// Image files. A derived class gives the paths and labels.
class ImageFiles : public Dataset {
 public:
  ImageShape image_shape() const override { return shape_; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size(), image.size());
    open_sample(index, Extent::whole);
    ImageDecoder& decoder = ImageDecoder::of_this_thread();
    decoder.decode(shape_, image);
    look_for_damage(index);
    return label_of(index);
  }

  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    const ImageShape whole = open_sample(index, Extent::whole);
    if (whole.bytes() > kMostImageBytes) throw too_large(path_of(index), whole);
    decode_own_size(whole, shape_.channels, least, image);
    look_for_damage(index);
    return label_of(index);
  }

  ImageShape own_shape(std::int64_t index) const override {
    return open_file(path_of(index), exif_, Extent::header);
  }

  ImageCoding coding() const override { return ImageCoding::file; }

  std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const override {
    open_sample(index, Extent::whole);
    const std::span<const std::uint8_t> file = FileBytes::of_this_thread().all();
    bytes.assign(file.begin(), file.end());
    return label_of(index);
  }

  void probe(std::int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    open_sample(index, Extent::header);
  }

  std::int64_t damaged() const override { return damage_.count(); }

 protected:
  ImageFiles(bool any_size, ExifOrientation exif) : any_size_(any_size), exif_(exif) {}
  virtual std::string path_of(std::int64_t index) const = 0;
  virtual std::int32_t label_of(std::int64_t index) const = 0;

  ImageShape shape_;

 private:
  ImageShape open_sample(std::int64_t index, Extent extent) const {
    const std::string path = path_of(index);
    const ImageShape found = open_file(path, exif_, extent);
    if (!any_size_ && (found.height != shape_.height || found.width != shape_.width))
      throw of_another_size(path, found, shape_);
    return found;
  }

  void look_for_damage(std::int64_t index) const {
    const std::string_view warning = ImageDecoder::of_this_thread().warning();
    if (warning.empty()) return;
    damage_.add(index,
                fmt::format("{}: damaged, and decoded as far as possible: {}", path_of(index), warning));
  }

  bool any_size_;
  ExifOrientation exif_;
  mutable DamageLog damage_{"damaged and decoded as far as possible"};
};

class ImageFolder final : public ImageFiles {
 public:
  ImageFolder(const DatasetOptions& options, Split split)
      : ImageFiles(options.resize.size > 0, options.images.exif_orientation), names_(options, split) {
    const std::vector<std::string>& some = names_.some_of_training();
    shape_ = common_shape(options, split, std::ssize(some), [&](std::int64_t at) {
      return open_file(some[static_cast<std::size_t>(at)], options.images.exif_orientation, Extent::header);
    });
    if (shape_.bytes() > kMostImageBytes) throw too_large(some.front(), shape_);
  }

  std::int64_t size() const override { return names_.size(); }
  std::int64_t classes() const override { return static_cast<std::int64_t>(names_.classes().size()); }
  std::optional<std::int32_t> label(std::int64_t index) const override { return names_.label(index); }
  std::vector<std::int64_t> class_counts() const override { return names_.class_counts(); }
  std::vector<std::string> class_names() const override { return names_.classes(); }
  // A hash of the path below the folder of the split, independent of the dataset's path.
  std::uint64_t key(std::int64_t index) const override {
    const std::string name = names_.path_in_split(index);
    return XXH3_64bits(name.data(), name.size());
  }

  // Covers all names and the bytes of some files, not pixels: decoders may differ in a pixel's last bit.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = names_.hash();
    for (const std::int64_t index : some_samples(size(), 32)) hash = hash_of_file(names_.path(index), hash);
    return hash;
  }

  std::size_t memory_bytes() const override { return names_.memory_bytes(); }

 protected:
  std::string path_of(std::int64_t index) const override { return names_.path(index); }
  std::int32_t label_of(std::int64_t index) const override { return names_.label(index); }

 private:
  ImageNames names_;
};

class ImageList final : public ImageFiles {
 public:
  ImageList(std::vector<std::string> paths, const ImageShape& shape, ImageListOptions options)
      : ImageFiles(options.any_size, options.exif), paths_(std::move(paths)), options_(std::move(options)) {
    shape_ = shape;
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(paths_.size()); }
  std::int64_t classes() const override { return static_cast<std::int64_t>(options_.classes.size()); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    return with_damage([&] { return ImageFiles::read(index, image); });
  }
  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    return with_damage([&] { return ImageFiles::read_own_size(index, least, image); });
  }
  std::vector<std::string> class_names() const override { return options_.classes; }
  bool has_masks() const override { return options_.labels_of_pixels; }
  void read_mask(std::int64_t, std::span<std::uint8_t> mask) const override {
    std::ranges::fill(mask, kIgnoredPixel);
  }

 protected:
  std::string path_of(std::int64_t index) const override { return paths_[static_cast<std::size_t>(index)]; }
  std::int32_t label_of(std::int64_t) const override { return 0; }

 private:
  template <typename Read>
  std::int32_t with_damage(Read read_image) const {
    try {
      return read_image();
    } catch (const IoError& error) {
      if (!options_.unreadable_is_damaged) throw;
      throw DataError(error.what());
    }
  }

  std::vector<std::string> paths_;
  ImageListOptions options_;
};

}  // namespace

std::unique_ptr<Dataset> open_image_folder(const DatasetOptions& options, Split split) {
  return std::make_unique<ImageFolder>(options, split);
}

std::unique_ptr<Dataset> open_image_list(std::vector<std::string> paths, const ImageShape& shape,
                                         ImageListOptions options) {
  return std::make_unique<ImageList>(std::move(paths), shape, std::move(options));
}

std::uint64_t hash_of_file(const std::string& path, std::uint64_t seed) {
  std::uint64_t size = 0;
  std::vector<std::uint8_t> bytes;
  try {
    const ReadableFile file(path);
    size = file.bytes();
    bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(size, 1 << 16)));
    file.read(0, bytes.data(), bytes.size());
  } catch (const Error&) {
    size = 0;
    bytes.clear();
  }
  seed = XXH3_64bits_withSeed(&size, sizeof(size), seed);
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace lockstep
