// SPDX-License-Identifier: Apache-2.0
#include "data/formats/idx.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <zlib.h>

#include "core/error.h"
#include "data/sets/held_images.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kImageMagic = 0x00000803;   // unsigned bytes, three dimensions
constexpr std::uint32_t kColourMagic = 0x00000804;  // four dimensions: channels last
constexpr std::uint32_t kLabelMagic = 0x00000801;   // one dimension
constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 30;
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kInput = std::size_t{1} << 16;

// Reads plain and gzip files (recognised by their first bytes); errors name the offset in the uncompressed
// bytes. Uses inflate() directly because zlib's gzread() ignores bytes after a gzip stream.
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path)
      : path_(path), file_(path, std::ios::binary), buffer_(kInput) {
    if (!file_) fail_to_read();
    refill();
    gzip_ = input_.size() >= 2 && input_[0] == 0x1f && input_[1] == 0x8b;
    if (gzip_)
      CHECK(inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK, "zlib: {}", stream_.msg ? stream_.msg : "");
  }
  ~IdxFile() {
    if (gzip_) inflateEnd(&stream_);
  }
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  std::uint32_t word() {
    std::uint8_t bytes[4];
    read(bytes, sizeof(bytes));
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
           bytes[3];
  }

  // Memory grows with the bytes that the file has, not with the header's claim.
  std::vector<std::uint8_t> bytes(std::uint64_t count) {
    std::vector<std::uint8_t> data;
    while (data.size() < count) {
      const std::size_t before = data.size();
      const std::size_t part = std::min<std::uint64_t>(kChunk, count - before);
      data.resize(before + part);
      read(data.data() + before, part);
    }
    return data;
  }

  void expect_magic(std::uint32_t expected, const char* what) {
    const std::uint32_t magic = word();
    if (magic != expected) {
      fail(0, fmt::format("magic number {:#010x}, expected {:#010x} (IDX {})", magic, expected, what));
    }
  }

  // Reads to the end, which also checks gzip's checksum.
  void expect_end() {
    std::uint8_t extra = 0;
    if (read_some(&extra, 1) > 0) fail(offset_, "the file has more bytes than its header says");
  }

  [[noreturn]] void fail(std::uint64_t offset, const std::string& what) const {
    throw DataError(fmt::format("{}: at byte {} (uncompressed): {}", path_.string(), offset, what));
  }

 private:
  void read(std::uint8_t* to, std::size_t count) {
    while (count > 0) {
      const std::size_t got = read_some(to, count);
      if (got == 0) fail(offset_, fmt::format("the file ends here; {} more bytes were expected", count));
      offset_ += got;
      to += got;
      count -= got;
    }
  }

  // Reads at least one byte; returns 0 at the end.
  std::size_t read_some(std::uint8_t* to, std::size_t count) {
    if (gzip_) return inflate_some(to, count);
    if (input_.empty()) refill();
    const std::size_t got = std::min(count, input_.size());
    std::copy_n(input_.begin(), got, to);
    input_ = input_.subspan(got);
    return got;
  }

  // A gzip file is one or more consecutive streams.
  std::size_t inflate_some(std::uint8_t* to, std::size_t count) {
    stream_.next_out = to;
    stream_.avail_out = static_cast<uInt>(count);
    while (stream_.avail_out == count) {
      if (input_.empty()) refill();
      if (input_.empty() && between_streams_) return 0;
      if (input_.empty()) fail(offset_, "the file ends within its gzip stream");
      stream_.next_in = input_.data();
      stream_.avail_in = static_cast<uInt>(input_.size());
      const int code = inflate(&stream_, Z_NO_FLUSH);
      input_ = input_.last(stream_.avail_in);
      if (code != Z_OK && code != Z_STREAM_END) {
        fail(offset_ + count - stream_.avail_out,
             fmt::format("damaged gzip stream: {}", stream_.msg != nullptr ? stream_.msg : zError(code)));
      }
      between_streams_ = code == Z_STREAM_END;
      if (between_streams_) inflateReset(&stream_);
    }
    return count - stream_.avail_out;
  }

  void refill() {
    file_.read(reinterpret_cast<char*>(buffer_.data()), static_cast<std::streamsize>(buffer_.size()));
    if (file_.bad()) fail_to_read();
    input_ = {buffer_.data(), static_cast<std::size_t>(file_.gcount())};
  }
  [[noreturn]] void fail_to_read() const {
    throw IoError(fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(errno)));
  }

  std::filesystem::path path_;
  std::ifstream file_;
  std::vector<std::uint8_t> buffer_;
  std::span<std::uint8_t> input_;  // unread part of buffer_
  bool gzip_ = false;
  bool between_streams_ = false;
  z_stream stream_ = {};
  std::uint64_t offset_ = 0;
};

// Returns the plain file, else the one with .gz, else an empty path.
std::filesystem::path look_for(const std::filesystem::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(folder / candidate, error);
    if (status.type() != std::filesystem::file_type::not_found) return folder / candidate;
  }
  return {};
}

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  if (const std::filesystem::path found = look_for(folder, name); !found.empty()) return found;
  const std::string path = (folder / name).string();
  if (path.starts_with("/usr/share/datasets/")) {
    throw IoError(fmt::format(
        "{}: not found, with or without .gz; to install it: apt-get install dataset-fashion-mnist", path));
  }
  throw IoError(fmt::format(
      "{}: not found, with or without .gz; data.path must name a folder with images and labels in IDX "
      "format, such as /usr/share/datasets/fashion-mnist after apt-get install dataset-fashion-mnist",
      path));
}

// All images of a file.
struct Images {
  std::uint32_t count = 0;
  ImageShape shape;
  std::vector<std::uint8_t> pixels;
};

Images read_images(const std::filesystem::path& path, std::uint32_t magic) {
  IdxFile file(path);
  file.expect_magic(magic, "images");
  Images images{.count = file.word(), .shape = {}, .pixels = {}};
  ImageShape& shape = images.shape;
  shape = {.height = file.word(), .width = file.word(), .channels = 1};
  if (magic == kColourMagic) shape.channels = file.word();
  constexpr std::int64_t kMaxSide = 1 << 16;
  constexpr std::int64_t kMaxChannels = 1 << 10;
  if (images.count < 1 || shape.height < 1 || shape.width < 1 || shape.channels < 1 ||
      shape.height > kMaxSide || shape.width > kMaxSide || shape.channels > kMaxChannels ||
      images.count > kMaxBytes / static_cast<std::uint64_t>(shape.bytes())) {
    file.fail(4, fmt::format(
                     "{} images of {}x{}{}: each number must be at least 1, and all images at most {} bytes",
                     images.count, shape.height, shape.width,
                     magic == kColourMagic ? fmt::format("x{}", shape.channels) : "", kMaxBytes));
  }
  images.pixels = file.bytes(images.count * static_cast<std::uint64_t>(shape.bytes()));
  file.expect_end();
  return images;
}

// Reads one label per image.
std::vector<std::uint8_t> read_labels(const std::filesystem::path& path, std::uint32_t images,
                                      const std::filesystem::path& images_path) {
  IdxFile file(path);
  file.expect_magic(kLabelMagic, "labels");
  if (const std::uint32_t count = file.word(); count != images) {
    file.fail(4,
              fmt::format("{} labels, but {} has {} images", count, images_path.filename().string(), images));
  }
  std::vector<std::uint8_t> labels = file.bytes(images);
  file.expect_end();
  return labels;
}

}  // namespace

std::unique_ptr<Dataset> open_idx(const std::filesystem::path& folder, Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const std::filesystem::path colour = look_for(folder, prefix + "-images-idx4-ubyte");
  const bool grey = colour.empty() || !look_for(folder, prefix + "-images-idx3-ubyte").empty();
  const std::filesystem::path images = grey ? find_file(folder, prefix + "-images-idx3-ubyte") : colour;
  Images read = read_images(images, grey ? kImageMagic : kColourMagic);
  std::vector<std::uint8_t> labels =
      read_labels(find_file(folder, prefix + "-labels-idx1-ubyte"), read.count, images);
  const std::int64_t classes = std::int64_t{*std::max_element(labels.begin(), labels.end())} + 1;
  return std::make_unique<HeldImages>(read.shape, classes, std::move(read.pixels),
                                      std::vector<std::int32_t>(labels.begin(), labels.end()));
}

}  // namespace lockstep
