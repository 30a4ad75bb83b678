// SPDX-License-Identifier: Apache-2.0
#include "data/records/records.h"

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/containers/split_files.h"
#include "data/formats/split_words.h"
#include "data/images/common_shape.h"
#include "data/images/image_decoder.h"
#include "data/records/record_file.h"
#include "data/sets/damage_log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Files by split, sorted by name and so by shard.
using FilesOfSplits = std::map<std::string, std::vector<fs::path>>;

FilesOfSplits record_files_in(const fs::path& folder) {
  FilesOfSplits files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kRecordSuffix)) files[name.substr(0, name.find('-'))].push_back(entry->path());
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  for (auto& [split, paths] : files) std::ranges::sort(paths);
  return files;
}

// Compares the header fields that all shards of a set share.
bool same_set(const RecordHeader& a, const RecordHeader& b) {
  const auto schema = [](const RecordHeader& header) {
    return std::tuple(header.coding, header.height, header.width, header.channels, header.classes,
                      header.shards, header.source, header.names_crc, header.own_sizes);
  };
  return schema(a) == schema(b);
}

// Maps sets of at most a quarter of the memory: most of such a set is soon in the page cache.
RecordFile::Access access_of(const std::vector<fs::path>& paths) {
  std::uintmax_t bytes = 0;
  for (const fs::path& path : paths) {
    std::error_code error;
    const std::uintmax_t each = fs::file_size(path, error);
    if (!error) bytes += each;  // RecordFile reports errors
  }
  const auto memory = static_cast<std::uintmax_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uintmax_t>(sysconf(_SC_PAGESIZE));
  return bytes <= memory / 4 ? RecordFile::Access::mapped : RecordFile::Access::read;
}

// The files of each name of a split that has files, in order. Those of the first name are used.
std::vector<std::vector<fs::path>> find_record_files(const DatasetOptions& options, Split split) {
  const FilesOfSplits files = record_files_in(options.path);
  std::vector<std::vector<fs::path>> found;
  for (const std::vector<std::string>& group : split_words(split, options.test_split)) {
    for (const std::string& name : group)
      if (files.contains(name)) found.push_back(files.at(name));
  }
  return found;
}

class Records final : public Dataset {
 public:
  Records(const DatasetOptions& options, Split split) : exif_(options.images.exif_orientation) {
    const std::vector<fs::path> paths = record_files(options, split);
    const RecordFile::Access access = access_of(paths);
    for (const fs::path& path : paths) add(std::make_unique<RecordFile>(path, access));
    const RecordHeader& header = files_.front()->header();
    if (files_.size() != header.shards) {
      throw DataError(fmt::format("{}: {} of {} shards exist; the shards after {} are missing", options.path,
                                  files_.size(), header.shards,
                                  fs::path(files_.back()->path()).filename().string()));
    }
    if (header.own_sizes != 0 && options.resize.size == 0) {
      throw ConfigError(
          fmt::format("{}: its images differ in size; set data.resize to the size to use", options.path));
    }
    own_sizes_ = header.own_sizes != 0;
    shape_ = {.height = header.height, .width = header.width, .channels = header.channels};
    coding_ = static_cast<ImageCoding>(header.coding);
    if (coding_ == ImageCoding::file) shape_.channels = channels_of(options, shape_.channels);
    counts_.resize(header.classes);
    for (const auto& file : files_)
      for (std::int64_t i = 0; i < file->size(); ++i)
        ++counts_[static_cast<std::size_t>(file->entry(i).label)];
  }

  std::int64_t size() const override { return ends_.back(); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return static_cast<std::int64_t>(counts_.size()); }
  std::optional<std::int32_t> label(std::int64_t index) const override {
    const auto [file, record] = find(index);
    return file.entry(record).label;
  }
  std::vector<std::int64_t> class_counts() const override { return counts_; }
  std::vector<std::string> class_names() const override { return files_.front()->class_names(); }
  ImageCoding coding() const override { return coding_; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const auto [file, record] = find(index);
    CHECK(static_cast<std::int64_t>(image.size()) == shape_.bytes(), "an image of {} bytes into {}",
          shape_.bytes(), image.size());
    if (coding_ == ImageCoding::pixels) {
      file.read(record, image);
    } else {
      decode(index, file, record, image);
    }
    return file.entry(record).label;
  }

  std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const override {
    if (coding_ == ImageCoding::pixels) return Dataset::read_own_size(index, least, image);
    const Place at = find(index);
    with_opened(index, at.file, at.record, [&](const ImageShape& whole) {
      if (whole.bytes() > kMostImageBytes) throw too_large(at.file.path(), whole);
      decode_own_size(whole, shape_.channels, least, image);
    });
    return at.file.entry(at.record).label;
  }
  ImageShape own_shape(std::int64_t index) const override {
    if (!own_sizes_) return shape_;
    const Place at = find(index);
    ImageShape own;
    with_opened(index, at.file, at.record, [&](const ImageShape& whole) { own = whole; });
    return own;
  }
  void will_read(std::int64_t index) const override {
    const auto [file, record] = find(index);
    file.prefetch(record);
  }

  std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const override {
    const auto [file, record] = find(index);
    const RecordEntry& entry = file.entry(record);
    bytes.resize(entry.bytes);
    file.read(record, bytes);
    return entry.label;
  }

  std::int64_t damaged() const override { return damage_.count(); }
  std::size_t memory_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& file : files_) bytes += file->memory_bytes();
    return bytes;
  }
  // Covers all labels and the checksums of all images.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = 0;
    for (const auto& file : files_) {
      const std::uint64_t each = file->fingerprint();
      hash = XXH3_64bits_withSeed(&each, sizeof(each), hash);
    }
    return hash;
  }

 private:
  struct Place {
    const RecordFile& file;
    std::int64_t record;
  };

  void add(std::unique_ptr<RecordFile> file) {
    if (!files_.empty() && !same_set(file->header(), files_.front()->header())) {
      throw DataError(
          fmt::format("{} and {} are shards of different sets; keep each set in a separate folder",
                      files_.front()->path(), file->path()));
    }
    if (file->header().shard != files_.size()) {
      throw DataError(
          fmt::format("{}: this is shard {} of {}, but number {} in its folder; a shard is missing, was "
                      "renamed or exists twice",
                      file->path(), file->header().shard, file->header().shards, files_.size()));
    }
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + file->size());
    files_.push_back(std::move(file));
  }

  Place find(std::int64_t index) const {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    const auto at = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    return {.file = *files_[at], .record = index - (at == 0 ? 0 : ends_[at - 1])};
  }

  void decode(std::int64_t index, const RecordFile& file, std::int64_t record,
              std::span<std::uint8_t> image) const {
    with_opened(index, file, record, [&](const ImageShape& found) {
      if (found.height != shape_.height || found.width != shape_.width) {
        throw DataError(
            fmt::format("{}: an image is {} pixels wide and {} high, but the header says {} and {}",
                        file.path(), found.width, found.height, shape_.width, shape_.height));
      }
      ImageDecoder::of_this_thread().decode(shape_, image);
    });
  }

  // Opens an image file in this thread's decoder and calls work(shape).
  template <typename Work>
  void with_opened(std::int64_t index, const RecordFile& file, std::int64_t record, Work work) const {
    thread_local std::vector<std::uint8_t> scratch;
    const std::span<const std::uint8_t> stored = file.look_at(record, scratch);
    ImageDecoder& decoder = ImageDecoder::of_this_thread();
    try {
      work(decoder.open(file.path(), stored, exif_, HeaderCheck::size));
    } catch (const DataError& error) {
      throw DataError(
          fmt::format("{} (record {}, at byte {})", error.what(), record, file.entry(record).offset));
    }
    if (!decoder.warning().empty())
      damage_.add(index, fmt::format("{}: damaged before it was packed, and decoded as far as possible: {}",
                                     file.place(record), decoder.warning()));
  }

  ExifOrientation exif_;
  std::vector<std::unique_ptr<RecordFile>> files_;
  std::vector<std::int64_t> ends_;  // of each file, in samples
  std::vector<std::int64_t> counts_;
  ImageShape shape_;
  ImageCoding coding_ = ImageCoding::pixels;
  bool own_sizes_ = false;
  mutable DamageLog damage_{"damaged and decoded as far as possible"};
};

}  // namespace

std::string shard_name(const std::string& split, std::int64_t shard, std::int64_t shards) {
  return fmt::format("{}-{:05}-of-{:05}{}", split, shard, shards, kRecordSuffix);
}

std::vector<fs::path> record_files(const DatasetOptions& options, Split split) {
  const std::vector<std::vector<fs::path>> found = find_record_files(options, split);
  if (!found.empty()) return found.front();
  const std::string words = options.test_split == "auto" ? "test-* or val" : options.test_split;
  throw IoError(
      fmt::format("{}: no record files {}-*{}; data.path must name a folder that lockstep pack wrote{}",
                  options.path, split == Split::train ? "train" : words, kRecordSuffix,
                  split == Split::train
                      ? ""
                      : "; set data.test_split to another word, or data.validation_share to test with a "
                        "part of the training samples"));
}

std::unique_ptr<Dataset> open_records(const DatasetOptions& options, Split split) {
  if (split == Split::train && options.validation_share == 0)
    return std::make_unique<Records>(options, split);
  const std::vector<std::vector<fs::path>> test = find_record_files(options, Split::test);
  if (options.validation_share > 0 && !test.empty()) {
    throw ConfigError(
        fmt::format("data.validation_share = {}: {} already has test files, such as {}; set "
                    "data.validation_share=0 to test with them, or move them to another folder",
                    options.validation_share, options.path, test.front().front().filename().string()));
  }
  if (split == Split::test && options.test_split == "auto" && test.size() > 1) {
    log_test_split(options.path, test[0].front().filename().string(), test[1].front().filename().string());
  }
  return std::make_unique<Records>(options, split);
}

}  // namespace lockstep
