// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5/hdf5_images.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/containers/split_files.h"
#include "data/hdf5/hdf5_module.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModuleFile = "lockstep_hdf5.so";
constexpr std::int32_t kMostLabels = 1 << 20;

// Beside the program, as it is built, or where it is installed.
const Hdf5Module& load_module() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string reasons;
  for (const fs::path& path :
       {program / kModuleFile, program / "../lib/lockstep" / kModuleFile, fs::path(kModuleFile)}) {
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      reasons += fmt::format("\n  {}", dlerror());
      continue;
    }
    const auto entry = reinterpret_cast<const Hdf5Module* (*)()>(dlsym(module, Hdf5Module::kSymbol));
    if (entry == nullptr || entry()->version != Hdf5Module::kVersion) {
      reasons += fmt::format("\n  {}: of another version of Lockstep", path.string());
      continue;
    }
    return *entry();
  }
  throw ConfigError(fmt::format(
      "data.format = \"hdf5\" needs {}, which is built where the HDF5 library's development files are: "
      "apt-get install libhdf5-dev, and configure and build again{}",
      kModuleFile, reasons));
}

// The library serves one thread at a time, whatever the file.
std::mutex& library() {
  static std::mutex mutex;
  return mutex;
}

class Hdf5Reader {
 public:
  Hdf5Reader(const fs::path& path, const Hdf5Options& options) : module_(module()), path_(path.string()) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) throw IoError(fmt::format("{}: no such file", path_));
    const std::lock_guard lock(library());
    std::array<char, Hdf5Module::kMessageBytes> message = {};
    file_ =
        module_.open(path_.c_str(), options.images.c_str(), options.labels.c_str(), &facts_, message.data());
    if (file_ == nullptr) fail(message.data());
  }
  ~Hdf5Reader() {
    const std::lock_guard lock(library());
    module_.close(file_);
  }
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return facts_.samples; }
  ImageShape shape() const {
    return {.height = facts_.height, .width = facts_.width, .channels = facts_.channels};
  }

  std::vector<std::int32_t> labels() const {
    std::vector<std::int32_t> labels(static_cast<std::size_t>(size()));
    std::array<char, Hdf5Module::kMessageBytes> message = {};
    const std::lock_guard lock(library());
    if (module_.read_labels(file_, labels.data(), message.data()) != 0) fail(message.data());
    return labels;
  }
  void read(std::int64_t index, std::span<std::uint8_t> image) const {
    std::array<char, Hdf5Module::kMessageBytes> message = {};
    const std::lock_guard lock(library());
    if (module_.read_image(file_, index, image.data(), message.data()) != 0) fail(message.data());
  }

 private:
  static const Hdf5Module& module() {
    static const Hdf5Module& loaded = load_module();
    return loaded;
  }
  [[noreturn]] void fail(const char* why) const { throw DataError(fmt::format("{}: {}", path_, why)); }

  const Hdf5Module& module_;
  std::string path_;
  Hdf5Facts facts_;
  Hdf5File* file_ = nullptr;
};

// How many classes the labels tell of.
std::int64_t classes_of(const Hdf5Reader& reader, const std::vector<std::int32_t>& labels) {
  const auto [least, most] = std::ranges::minmax(labels);
  if (least < 0 || most >= kMostLabels) {
    throw DataError(fmt::format("{}: labels from {} to {}: those from 0 to {} are possible", reader.path(),
                                least, most, kMostLabels - 1));
  }
  return most + 1;
}

class Hdf5Images final : public Dataset {
 public:
  // classes: of training; 0: this is it.
  Hdf5Images(std::unique_ptr<Hdf5Reader> reader, std::int64_t classes)
      : reader_(std::move(reader)), shape_(reader_->shape()), labels_(reader_->labels()) {
    if (shape_.bytes() > kMostImageBytes) {
      throw DataError(fmt::format("{}: images of {} bytes; at most {} are possible", reader_->path(),
                                  shape_.bytes(), kMostImageBytes));
    }
    const std::int64_t found = classes_of(*reader_, labels_);
    if (classes > 0 && found > classes) {
      throw DataError(fmt::format("{}: label {}, where those of training end at {}", reader_->path(),
                                  found - 1, classes - 1));
    }
    counts_.resize(static_cast<std::size_t>(std::max(found, classes)));
    for (const std::int32_t label : labels_) ++counts_[static_cast<std::size_t>(label)];
  }

  std::int64_t size() const override { return std::ssize(labels_); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return std::ssize(counts_); }
  std::vector<std::int64_t> class_counts() const override { return counts_; }
  // Chunks are unpacked for it.
  bool decodes() const override { return true; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size(), image.size());
    reader_->read(index, image);
    return labels_[static_cast<std::size_t>(index)];
  }
  std::size_t memory_bytes() const override { return labels_.capacity() * sizeof(std::int32_t); }
  // Of all labels, and of the pixels of some samples.
  std::uint64_t fingerprint() const override {
    return XXH3_64bits_withSeed(labels_.data(), labels_.size() * sizeof(std::int32_t),
                                Dataset::fingerprint());
  }

 private:
  std::unique_ptr<Hdf5Reader> reader_;
  ImageShape shape_;
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> counts_;
};

std::unique_ptr<Hdf5Reader> reader_of(const DatasetOptions& options, Split split) {
  const fs::path folder = options.path;
  constexpr std::string_view kExpected = "train.h5 and test.h5, or val.h5 (or .hdf5)";
  std::vector<fs::path> files = split_files(folder, split, {.mark = ".h", .expected = kExpected});
  std::erase_if(
      files, [](const fs::path& path) { return path.extension() != ".h5" && path.extension() != ".hdf5"; });
  if (files.empty()) throw IoError(fmt::format("{}: expected are {}", folder.string(), kExpected));
  if (files.size() > 1) {
    throw DataError(fmt::format("{}: {} and {} are both of one split; there may be one file of each",
                                folder.string(), files[0].filename().string(), files[1].filename().string()));
  }
  return std::make_unique<Hdf5Reader>(files.front(), options.hdf5);
}

}  // namespace

std::unique_ptr<Dataset> open_hdf5(const DatasetOptions& options, Split split) {
  std::unique_ptr<Hdf5Reader> train = reader_of(options, Split::train);
  if (split == Split::train) return std::make_unique<Hdf5Images>(std::move(train), 0);
  const std::int64_t classes = classes_of(*train, train->labels());
  std::unique_ptr<Hdf5Reader> test = reader_of(options, Split::test);
  if (test->shape() != train->shape()) {
    throw DataError(
        fmt::format("{}: its images are not of the size of those in {}", test->path(), train->path()));
  }
  return std::make_unique<Hdf5Images>(std::move(test), classes);
}

}  // namespace lockstep
