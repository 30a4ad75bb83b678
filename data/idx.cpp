// SPDX-License-Identifier: Apache-2.0
#include "data/idx.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <zlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kImageMagic = 0x00000803;   // unsigned bytes, three dimensions
constexpr std::uint32_t kColourMagic = 0x00000804;  // four dimensions: channels last
constexpr std::uint32_t kLabelMagic = 0x00000801;   // one dimension
constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 30;
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kInput = std::size_t{1} << 16;

// Reads plain and gzip files alike (told apart by their first bytes), and says where in the uncompressed
// bytes it went wrong. Does its own inflating because zlib's gzread() ignores whatever follows a gzip stream.
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

  // Grows with what is there, not with what the header claims.
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

  // Reads on to the end, which also checks gzip's checksum.
  void expect_end() {
    std::uint8_t extra = 0;
    if (read_some(&extra, 1) > 0) fail(offset_, "there are bytes after the last one the header promises");
  }

  [[noreturn]] void fail(std::uint64_t offset, const std::string& what) const {
    throw DataError(fmt::format("{}: at byte {} (uncompressed): {}", path_.string(), offset, what));
  }

 private:
  void read(std::uint8_t* to, std::size_t count) {
    while (count > 0) {
      const std::size_t got = read_some(to, count);
      if (got == 0) fail(offset_, fmt::format("the file ends here, {} more bytes were expected", count));
      offset_ += got;
      to += got;
      count -= got;
    }
  }

  // At least one byte, or 0 at the end.
  std::size_t read_some(std::uint8_t* to, std::size_t count) {
    if (gzip_) return inflate_some(to, count);
    if (input_.empty()) refill();
    const std::size_t got = std::min(count, input_.size());
    std::copy_n(input_.begin(), got, to);
    input_ = input_.subspan(got);
    return got;
  }

  // A gzip file is one stream or several in a row.
  std::size_t inflate_some(std::uint8_t* to, std::size_t count) {
    stream_.next_out = to;
    stream_.avail_out = static_cast<uInt>(count);
    while (stream_.avail_out == count) {
      if (input_.empty()) refill();
      if (input_.empty() && between_streams_) return 0;
      if (input_.empty()) fail(offset_, "the file ends in the middle of its gzip stream");
      stream_.next_in = input_.data();
      stream_.avail_in = static_cast<uInt>(input_.size());
      const int code = inflate(&stream_, Z_NO_FLUSH);
      input_ = input_.last(stream_.avail_in);
      if (code != Z_OK && code != Z_STREAM_END) {
        fail(offset_ + count - stream_.avail_out,
             fmt::format("broken gzip stream: {}", stream_.msg != nullptr ? stream_.msg : zError(code)));
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
  std::span<std::uint8_t> input_;  // of buffer_, not consumed yet
  bool gzip_ = false;
  bool between_streams_ = false;
  z_stream stream_ = {};
  std::uint64_t offset_ = 0;
};

// Empty where there is none.
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
    throw IoError(
        fmt::format("{}: not found, plain or with .gz; apt-get install dataset-fashion-mnist", path));
  }
  throw IoError(fmt::format(
      "{}: not found, plain or with .gz; data.path must name a folder that holds images and labels in IDX "
      "format, such as /usr/share/datasets/fashion-mnist after apt-get install dataset-fashion-mnist",
      path));
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(const std::filesystem::path& images, std::uint32_t magic, const std::filesystem::path& labels) {
    read_images(images, magic);
    IdxFile file(labels);
    file.expect_magic(kLabelMagic, "labels");
    const std::uint32_t count = file.word();
    if (count != count_) {
      file.fail(4, fmt::format("{} labels, but {} has {} images", count, images.filename().string(), count_));
    }
    labels_ = file.bytes(count);
    file.expect_end();
    classes_ = std::int64_t{*std::max_element(labels_.begin(), labels_.end())} + 1;
  }

  std::int64_t size() const override { return count_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < count_ && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, count_, image.size());
    std::copy_n(pixels_.begin() + index * shape_.bytes(), shape_.bytes(), image.begin());
    return labels_[static_cast<std::size_t>(index)];
  }
  std::vector<std::int64_t> class_counts() const override { return counts_of(labels_, classes_); }
  bool verified() const override { return true; }
  std::size_t memory_bytes() const override { return pixels_.capacity() + labels_.capacity(); }
  // Of everything: memory is read faster than a few files are.
  std::uint64_t fingerprint() const override {
    return XXH3_64bits_withSeed(pixels_.data(), pixels_.size(), XXH3_64bits(labels_.data(), labels_.size()));
  }

 private:
  void read_images(const std::filesystem::path& path, std::uint32_t magic) {
    IdxFile file(path);
    file.expect_magic(magic, "images");
    count_ = file.word();
    shape_ = {.height = file.word(), .width = file.word(), .channels = 1};
    if (magic == kColourMagic) shape_.channels = file.word();
    constexpr std::int64_t kMaxSide = 1 << 16;
    constexpr std::int64_t kMaxChannels = 1 << 10;
    if (count_ < 1 || shape_.height < 1 || shape_.width < 1 || shape_.channels < 1 ||
        shape_.height > kMaxSide || shape_.width > kMaxSide || shape_.channels > kMaxChannels ||
        static_cast<std::uint64_t>(count_) > kMaxBytes / static_cast<std::uint64_t>(shape_.bytes())) {
      file.fail(
          4, fmt::format("{} images of {}x{}{}: at least 1 each, and at most {} bytes in all, are possible",
                         count_, shape_.height, shape_.width,
                         magic == kColourMagic ? fmt::format("x{}", shape_.channels) : "", kMaxBytes));
    }
    pixels_ = file.bytes(static_cast<std::uint64_t>(count_ * shape_.bytes()));
    file.expect_end();
  }

  std::int64_t count_ = 0;
  std::int64_t classes_ = 0;
  ImageShape shape_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace

std::unique_ptr<Dataset> open_idx(const std::filesystem::path& folder, Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const std::filesystem::path colour = look_for(folder, prefix + "-images-idx4-ubyte");
  const bool grey = colour.empty() || !look_for(folder, prefix + "-images-idx3-ubyte").empty();
  const std::filesystem::path images = grey ? find_file(folder, prefix + "-images-idx3-ubyte") : colour;
  return std::make_unique<IdxDataset>(images, grey ? kImageMagic : kColourMagic,
                                      find_file(folder, prefix + "-labels-idx1-ubyte"));
}

}  // namespace lockstep
