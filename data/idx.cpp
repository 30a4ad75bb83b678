// SPDX-License-Identifier: Apache-2.0
#include "data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kImageMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 30;
constexpr std::size_t kChunk = std::size_t{1} << 20;

// Reads plain and gzip files alike, and says where in the uncompressed bytes it went wrong.
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) throw IoError(fmt::format("{}: cannot be opened", path_.string()));
    gzbuffer(file_, 1 << 17);
  }
  ~IdxFile() { gzclose_r(file_); }
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  std::uint32_t word() {
    std::uint8_t bytes[4];
    read(bytes, sizeof(bytes));
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
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

  // Reads on to the end, which also checks gzip's checksum.
  void expect_end() {
    std::uint8_t extra = 0;
    const int got = gzread(file_, &extra, 1);
    if (got < 0) fail_in_stream();
    if (got > 0) fail("there are bytes after the last one the header promises");
    if (stream_is_broken()) fail_in_stream();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: at byte {} (uncompressed): {}", path_.string(), offset_, what));
  }

 private:
  void read(std::uint8_t* to, std::size_t count) {
    const int got = gzread(file_, to, static_cast<unsigned>(count));
    if (got < 0) fail_in_stream();
    offset_ += static_cast<std::uint64_t>(got);
    if (static_cast<std::size_t>(got) < count) {
      if (stream_is_broken()) fail_in_stream();
      fail(fmt::format("the file ends here, {} bytes were expected", count - static_cast<std::size_t>(got)));
    }
  }
  bool stream_is_broken() {
    int code = Z_OK;
    gzerror(file_, &code);
    return code != Z_OK && code != Z_STREAM_END;
  }
  [[noreturn]] void fail_in_stream() {
    int code = Z_OK;
    const std::string text = gzerror(file_, &code);
    fail(fmt::format("broken gzip stream: {}", text));
  }

  std::filesystem::path path_;
  gzFile file_;
  std::uint64_t offset_ = 0;
};

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (std::filesystem::exists(folder / candidate)) return folder / candidate;
  }
  throw IoError(fmt::format(
      "{}: not found, plain or with .gz; data.path must name a folder of IDX files (Fashion-MNIST: apt-get install "
      "dataset-fashion-mnist, then /usr/share/datasets/fashion-mnist)",
      (folder / name).string()));
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels) {
    read_images(images);
    IdxFile file(labels);
    if (const std::uint32_t magic = file.word(); magic != kLabelMagic) {
      file.fail(fmt::format("magic number {:#010x}, expected {:#010x} (IDX labels)", magic, kLabelMagic));
    }
    const std::uint32_t count = file.word();
    if (count != count_) {
      file.fail(fmt::format("{} labels, but {} has {} images", count, images.filename().string(), count_));
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

 private:
  void read_images(const std::filesystem::path& path) {
    IdxFile file(path);
    if (const std::uint32_t magic = file.word(); magic != kImageMagic) {
      file.fail(fmt::format("magic number {:#010x}, expected {:#010x} (IDX images)", magic, kImageMagic));
    }
    count_ = file.word();
    shape_ = {.height = file.word(), .width = file.word(), .channels = 1};
    constexpr std::int64_t kMaxSide = 1 << 16;
    if (count_ < 1 || shape_.height < 1 || shape_.width < 1 || shape_.height > kMaxSide || shape_.width > kMaxSide ||
        static_cast<std::uint64_t>(count_) > kMaxBytes / static_cast<std::uint64_t>(shape_.bytes())) {
      file.fail(fmt::format("{} images of {}x{}: at least 1 each, and at most {} bytes in all, are possible", count_,
                            shape_.height, shape_.width, kMaxBytes));
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
  return std::make_unique<IdxDataset>(find_file(folder, prefix + "-images-idx3-ubyte"),
                                      find_file(folder, prefix + "-labels-idx1-ubyte"));
}

}  // namespace lockstep
