// SPDX-License-Identifier: Apache-2.0
#include "data/jpeg_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <turbojpeg.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/damage_log.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostImageBytes = std::int64_t{256} << 20;  // of a file, and of an image
constexpr const char* kExpected =
    "data.path must name a folder that holds train/CLASS/*.jpg and test/CLASS/*.jpg (or val/ in place of "
    "test/)";

class Descriptor {
 public:
  // O_NONBLOCK: a FIFO would wait here for its other end; regular files do not care.
  explicit Descriptor(const std::string& path)
      : value_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

// Of ink the values say how much is missing: see data/jpeg_folder.h.
std::uint8_t mixed(std::uint8_t colour, std::uint8_t black) {
  return static_cast<std::uint8_t>((colour * black + 127) / 255);
}

// A file, decoded as a JPEG image. Each thread has one, whose memory serves all its files.
class Jpeg {
 public:
  enum class Extent { header, whole };

  static Jpeg& of_this_thread() {
    thread_local Jpeg jpeg;
    return jpeg;
  }

  // Reads the file, or as much of it as its header takes, and the header. 1 channel for grayscale, 3 for any
  // other image.
  ImageShape load(const std::string& path, Extent extent) {
    constexpr std::size_t kMostHeaders = std::size_t{64} << 10;
    path_ = path;
    const Descriptor file(path);
    const std::size_t file_size = size_of(file);
    size_ = 0;
    if (extent == Extent::header && file_size > kMostHeaders) {
      read_up_to(file, kMostHeaders);
      if (parse_header() == 0 && width_ > 0) return shape();
    }
    read_up_to(file, file_size);
    if (size_ == 0) fail("the file is empty, expected a JPEG image");
    tolerate(parse_header());
    if (width_ < 1 || height_ < 1) fail("a JPEG file without an image");  // it may hold tables only
    return shape();
  }

  // What load() has read as a whole. The shape has the image's height and width, and 1 or 3 channels of
  // either kind.
  void decode(const ImageShape& shape, std::span<std::uint8_t> image) {
    if (colours_ != TJCS_CMYK && colours_ != TJCS_YCCK) {
      return decode_as(shape.channels == 1 ? TJPF_GRAY : TJPF_RGB, image.data());
    }
    const auto pixels = static_cast<std::size_t>(shape.height * shape.width);
    if (inks_.size() < 4 * pixels) inks_.resize(4 * pixels);
    decode_as(TJPF_CMYK, inks_.data());
    for (std::size_t i = 0; i < pixels; ++i) {
      const std::uint8_t* ink = inks_.data() + 4 * i;
      const std::uint8_t red = mixed(ink[0], ink[3]);
      const std::uint8_t green = mixed(ink[1], ink[3]);
      const std::uint8_t blue = mixed(ink[2], ink[3]);
      if (shape.channels == 1) {  // as libjpeg makes it of RGB
        image[i] = static_cast<std::uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
      } else {
        image[3 * i] = red;
        image[3 * i + 1] = green;
        image[3 * i + 2] = blue;
      }
    }
  }

  // What TurboJPEG warned of since load(); empty: nothing.
  const std::string& warning() const { return warning_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", path_, what));
  }

 private:
  struct Destroy {
    void operator()(void* handle) const { tjDestroy(handle); }
  };

  Jpeg() = default;

  ImageShape shape() const {
    return {.height = height_, .width = width_, .channels = colours_ == TJCS_GRAY ? 1 : 3};
  }

  // By a new decompressor, which takes a third of a microsecond: one keeps tables of the file before, and
  // after an error its place in it, so that a file's bytes would depend on what else its thread has read.
  int parse_header() {
    decompressor_.reset(tjInitDecompress());
    CHECK(decompressor_ != nullptr, "TurboJPEG: {}", tjGetErrorStr2(nullptr));
    warning_.clear();
    width_ = height_ = 0;
    int subsampling = 0;
    return tjDecompressHeader3(decompressor_.get(), bytes_.data(), size_, &width_, &height_, &subsampling,
                               &colours_);
  }

  void decode_as(int format, std::uint8_t* pixels) {
    constexpr int kFlags = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS;
    tolerate(
        tjDecompress2(decompressor_.get(), bytes_.data(), size_, pixels, width_, 0, height_, format, kFlags));
  }

  void tolerate(int result) {
    if (result == 0) return;
    const char* reason = tjGetErrorStr2(decompressor_.get());
    if (tjGetErrorCode(decompressor_.get()) != TJERR_WARNING) {
      fail(fmt::format("not a JPEG image, truncated or corrupt: {}", reason));
    }
    if (warning_.empty()) warning_ = reason;
  }

  std::size_t size_of(const Descriptor& file) const {
    struct stat status = {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0) fail_to_read();
    if (!S_ISREG(status.st_mode)) {
      throw IoError(fmt::format("{}: cannot be read: not a regular file", path_));
    }
    if (status.st_size > kMostImageBytes) {
      fail(fmt::format("{} bytes; at most {} are read as one image", status.st_size, kMostImageBytes));
    }
    return static_cast<std::size_t>(status.st_size);
  }

  // On from what was read of it before.
  void read_up_to(const Descriptor& file, std::size_t end) {
    if (bytes_.size() < end) bytes_.resize(end);
    while (size_ < end) {
      const ssize_t got = ::read(file.get(), bytes_.data() + size_, end - size_);
      if (got < 0 && errno != EINTR) fail_to_read();
      if (got == 0) break;
      if (got > 0) size_ += static_cast<std::size_t>(got);
    }
  }

  [[noreturn]] void fail_to_read() const {
    throw IoError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
  }

  std::unique_ptr<void, Destroy> decompressor_;
  std::string path_;
  std::vector<std::uint8_t> bytes_;  // grows to the largest file, of which size_ are this one's
  std::size_t size_ = 0;
  std::vector<std::uint8_t> inks_;  // of a CMYK image
  int width_ = 0;
  int height_ = 0;
  int colours_ = 0;  // TJCS
  std::string warning_;
};

// Of the size and the first bytes. What is no file, or cannot be read, counts as empty: read() says so.
std::uint64_t hash_of_file(const std::string& path, std::uint64_t seed) {
  const Descriptor file(path);
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) status.st_size = 0;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min<off_t>(status.st_size, 1 << 16)));
  const ssize_t got = bytes.empty() ? 0 : ::pread(file.get(), bytes.data(), bytes.size(), 0);
  seed = XXH3_64bits_withSeed(&status.st_size, sizeof(status.st_size), seed);
  return XXH3_64bits_withSeed(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)), seed);
}

bool is_jpeg(std::string_view name) {
  const auto ends_with = [&](std::string_view suffix) {
    return name.size() >= suffix.size() &&
           std::equal(suffix.begin(), suffix.end(), name.end() - static_cast<std::ptrdiff_t>(suffix.size()),
                      [](char lower, char c) { return lower == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  };
  return ends_with(".jpg") || ends_with(".jpeg");
}

enum class Entries { folders, jpegs };

// Names, sorted. What an entry is comes with its name from most file systems, without a look at the file; a
// link that leads nowhere counts as a file, so that reading it fails.
std::vector<std::string> list(const std::filesystem::path& folder, Entries wanted) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (wanted == Entries::jpegs && !is_jpeg(name)) continue;
    std::error_code unknown;
    if (entry->is_directory(unknown) == (wanted == Entries::folders)) names.push_back(std::move(name));
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

void require_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  throw IoError(
      fmt::format("{}: {}; {}", folder.string(), error ? error.message() : "not a folder", kExpected));
}

std::filesystem::path split_folder(const std::filesystem::path& folder, Split split) {
  require_folder(folder);
  require_folder(folder / "train");
  if (split == Split::train) return folder / "train";
  for (const char* name : {"test", "val"}) {
    std::error_code error;
    if (std::filesystem::is_directory(folder / name, error)) return folder / name;
  }
  throw IoError(fmt::format("{}: holds neither test/ nor val/; {}", folder.string(), kExpected));
}

// An empty one would be a class that is never seen, left by a mistake in preparing the images.
std::vector<std::string> training_images(const std::filesystem::path& class_folder) {
  std::vector<std::string> names = list(class_folder, Entries::jpegs);
  if (names.empty()) {
    throw DataError(
        fmt::format("{}: no .jpg or .jpeg files in this folder of a class (folders within it are not "
                    "searched); {}",
                    class_folder.string(), kExpected));
  }
  return names;
}

class JpegFolder final : public Dataset {
 public:
  JpegFolder(const std::filesystem::path& folder, Split split) : folder_(split_folder(folder, split)) {
    const std::filesystem::path train = folder / "train";
    classes_ = list(train, Entries::folders);
    if (classes_.empty()) {
      throw DataError(fmt::format("{}: no folders of classes; {}", train.string(), kExpected));
    }
    std::string first;
    if (split == Split::train) {
      for (const std::string& name : classes_) add_class(training_images(train / name));
      first = path(0);
    } else {
      list_test_images();
      first = (train / classes_[0] / training_images(train / classes_[0]).front()).string();
    }
    names_.shrink_to_fit();
    name_ends_.shrink_to_fit();
    Jpeg& jpeg = Jpeg::of_this_thread();
    shape_ = jpeg.load(first, Jpeg::Extent::header);
    if (shape_.bytes() > kMostImageBytes) {
      jpeg.fail(fmt::format("{} pixels wide and {} high: at most {} bytes are possible; resize all images",
                            shape_.width, shape_.height, kMostImageBytes));
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(name_ends_.size()); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return static_cast<std::int64_t>(classes_.size()); }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size(), image.size());
    Jpeg& jpeg = load(index, Jpeg::Extent::whole);
    jpeg.decode(shape_, image);
    if (!jpeg.warning().empty()) {
      damage_.add(index,
                  fmt::format("{}: damaged, decoded as far as it goes: {}", path(index), jpeg.warning()));
    }
    return label(index);
  }

  // Of all names, and so labels, and of the bytes of some files: decoders may differ in a pixel's last bit.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = 0;
    for (const std::string& name : classes_) hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
    hash = XXH3_64bits_withSeed(names_.data(), names_.size(), hash);
    hash = XXH3_64bits_withSeed(name_ends_.data(), sizeof(std::size_t) * name_ends_.size(), hash);
    hash = XXH3_64bits_withSeed(class_ends_.data(), sizeof(std::int64_t) * class_ends_.size(), hash);
    for (const std::int64_t index : some_samples(size(), 32)) {
      hash = hash_of_file(path(index), hash);
    }
    return hash;
  }

  void probe(std::int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    load(index, Jpeg::Extent::header);
  }

  std::int64_t damaged() const override { return damage_.count(); }

  std::size_t memory_bytes() const override {
    std::size_t bytes = names_.capacity() + sizeof(std::size_t) * name_ends_.capacity() +
                        sizeof(std::int64_t) * class_ends_.capacity();
    for (const std::string& name : classes_) bytes += sizeof(name) + name.capacity();
    return bytes;
  }

 private:
  void list_test_images() {
    const std::vector<std::string> found = list(folder_, Entries::folders);
    for (const std::string& name : found) {
      if (!std::binary_search(classes_.begin(), classes_.end(), name)) {
        throw DataError(fmt::format("{}: a class that train/ has no folder of; the two must have the same",
                                    (folder_ / name).string()));
      }
    }
    for (const std::string& name : classes_) {
      const bool there = std::binary_search(found.begin(), found.end(), name);
      add_class(there ? list(folder_ / name, Entries::jpegs) : std::vector<std::string>());
    }
    if (size() == 0) {
      throw DataError(fmt::format("{}: no .jpg or .jpeg files in its folders of classes; {}",
                                  folder_.string(), kExpected));
    }
  }

  void add_class(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      names_ += name;
      name_ends_.push_back(names_.size());
    }
    class_ends_.push_back(size());
  }

  Jpeg& load(std::int64_t index, Jpeg::Extent extent) const {
    Jpeg& jpeg = Jpeg::of_this_thread();
    const ImageShape found = jpeg.load(path(index), extent);
    if (found.height != shape_.height || found.width != shape_.width) {
      jpeg.fail(fmt::format(
          "{} pixels wide and {} high, expected {} and {} as in the first image of train/; resize all images "
          "to one size beforehand",
          found.width, found.height, shape_.width, shape_.height));
    }
    return jpeg;
  }

  std::int32_t label(std::int64_t index) const {
    return static_cast<std::int32_t>(std::upper_bound(class_ends_.begin(), class_ends_.end(), index) -
                                     class_ends_.begin());
  }
  std::string path(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    const std::size_t begin = at == 0 ? 0 : name_ends_[at - 1];
    return fmt::format("{}/{}/{}", folder_.native(), classes_[static_cast<std::size_t>(label(index))],
                       std::string_view(names_).substr(begin, name_ends_[at] - begin));
  }

  std::filesystem::path folder_;  // of the split
  std::vector<std::string> classes_;
  std::string names_;                     // of all files, one after the other
  std::vector<std::size_t> name_ends_;    // in names_
  std::vector<std::int64_t> class_ends_;  // in samples
  ImageShape shape_;
  mutable DamageLog damage_{"damaged and decoded as far as they go"};
};

}  // namespace

std::unique_ptr<Dataset> open_jpeg_folder(const std::filesystem::path& folder, Split split) {
  return std::make_unique<JpegFolder>(folder, split);
}

}  // namespace lockstep
