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
#include "data/image_names.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostImageBytes = std::int64_t{256} << 20;  // of a file, and of an image
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

class JpegFolder final : public Dataset {
 public:
  JpegFolder(const std::filesystem::path& folder, Split split) : names_(folder, split) {
    Jpeg& jpeg = Jpeg::of_this_thread();
    shape_ = jpeg.load(names_.first_of_training(), Jpeg::Extent::header);
    if (shape_.bytes() > kMostImageBytes) {
      jpeg.fail(fmt::format("{} pixels wide and {} high: at most {} bytes are possible; resize all images",
                            shape_.width, shape_.height, kMostImageBytes));
    }
  }

  std::int64_t size() const override { return names_.size(); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return static_cast<std::int64_t>(names_.classes().size()); }
  std::vector<std::int64_t> class_counts() const override { return names_.class_counts(); }
  std::vector<std::string> class_names() const override { return names_.classes(); }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size(), image.size());
    Jpeg& jpeg = load(index, Jpeg::Extent::whole);
    jpeg.decode(shape_, image);
    if (!jpeg.warning().empty()) {
      damage_.add(index, fmt::format("{}: damaged, decoded as far as it goes: {}", names_.path(index),
                                     jpeg.warning()));
    }
    return names_.label(index);
  }

  // Of all names, and of the bytes of some files: decoders may differ in a pixel's last bit.
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = names_.hash();
    for (const std::int64_t index : some_samples(size(), 32)) hash = hash_of_file(names_.path(index), hash);
    return hash;
  }

  void probe(std::int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    load(index, Jpeg::Extent::header);
  }

  std::int64_t damaged() const override { return damage_.count(); }
  std::size_t memory_bytes() const override { return names_.memory_bytes(); }

 private:
  Jpeg& load(std::int64_t index, Jpeg::Extent extent) const {
    Jpeg& jpeg = Jpeg::of_this_thread();
    const ImageShape found = jpeg.load(names_.path(index), extent);
    if (found.height != shape_.height || found.width != shape_.width) {
      jpeg.fail(fmt::format(
          "{} pixels wide and {} high, expected {} and {} as in the first image of train/; resize all images "
          "to one size beforehand",
          found.width, found.height, shape_.width, shape_.height));
    }
    return jpeg;
  }

  ImageNames names_;
  ImageShape shape_;
  mutable DamageLog damage_{"damaged and decoded as far as they go"};
};

}  // namespace

std::unique_ptr<Dataset> open_jpeg_folder(const std::filesystem::path& folder, Split split) {
  return std::make_unique<JpegFolder>(folder, split);
}

}  // namespace lockstep
