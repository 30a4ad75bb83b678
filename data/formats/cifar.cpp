// SPDX-License-Identifier: Apache-2.0
#include "data/formats/cifar.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/sets/held_images.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr ImageShape kShape{.height = 32, .width = 32, .channels = 3};
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 32;  // per file; published files have <= 154 MB
constexpr std::size_t kPlane = 32 * 32, kPixels = 3 * kPlane;

// A label byte before the pixels: its name and number of values. The last one is the sample's label.
struct LabelByte {
  const char* name;
  int values;
};

struct Version {
  const char* name;
  std::vector<LabelByte> labels;
  std::vector<const char*> train;
  std::vector<const char*> test;

  std::size_t record() const { return labels.size() + kPixels; }
  const std::vector<const char*>& files(Split split) const { return split == Split::train ? train : test; }
};

const Version& cifar10() {
  static const Version version = {
      "CIFAR-10",
      {{"label", 10}},
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      {"test_batch.bin"}};
  return version;
}

const Version& cifar100() {
  static const Version version = {
      "CIFAR-100", {{"coarse label", 20}, {"fine label", 100}}, {"train.bin"}, {"test.bin"}};
  return version;
}

bool has_one(const fs::path& folder, const Version& version) {
  const auto there = [&](const char* name) {
    std::error_code error;
    return fs::exists(folder / name, error);
  };
  return std::ranges::any_of(version.train, there) || std::ranges::any_of(version.test, there);
}

const Version& version_in(const fs::path& folder) {
  const bool ten = has_one(folder, cifar10()), hundred = has_one(folder, cifar100());
  if (ten && hundred) {
    throw DataError(
        fmt::format("{}: contains files of CIFAR-10 (data_batch_1.bin ..) and of CIFAR-100 (train.bin); put "
                    "each into a separate folder",
                    folder.string()));
  }
  if (!ten && !hundred) {
    throw IoError(fmt::format(
        "{}: contains neither CIFAR-10 (data_batch_1.bin ..) nor CIFAR-100 (train.bin); data.path must name "
        "the unpacked archive of the binary version, such as cifar-10-batches-bin",
        folder.string()));
  }
  return ten ? cifar10() : cifar100();
}

// Reads the files of a split one after the other.
class Reader {
 public:
  explicit Reader(const Version& version) : version_(version) {}

  // Checks each record and converts its pixels to channels last.
  void add_file(const fs::path& path) {
    std::error_code error;  // also set for folders
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) throw IoError(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
    if (bytes > kMostFileBytes) {
      throw DataError(fmt::format("{}: the file has {} bytes; the limit is {} bytes for a file of {}",
                                  path.string(), bytes, kMostFileBytes, version_.name));
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) fail_to_read(path);
    const std::size_t records = bytes / version_.record();
    pixels_.reserve(pixels_.size() + records * kPixels);
    labels_.reserve(labels_.size() + records);
    const std::size_t first = labels_.size();
    std::vector<std::uint8_t> record(version_.record());
    for (std::uint64_t offset = 0;; offset += record.size()) {
      file.read(reinterpret_cast<char*>(record.data()), static_cast<std::streamsize>(record.size()));
      if (file.bad()) fail_to_read(path);
      const auto got = static_cast<std::size_t>(file.gcount());
      if (got == 0) break;
      if (got < record.size()) {
        throw DataError(
            fmt::format("{}: at byte {}: the file ends within a record, after {} of {} bytes (format {})",
                        path.string(), offset, got, record.size(), version_.name));
      }
      add_record(record, path, offset);
    }
    if (labels_.size() == first) throw DataError(fmt::format("{}: the file is empty", path.string()));
  }

  std::unique_ptr<Dataset> held() {
    return std::make_unique<HeldImages>(kShape, version_.labels.back().values, std::move(pixels_),
                                        std::move(labels_));
  }

 private:
  void add_record(const std::vector<std::uint8_t>& record, const fs::path& path, std::uint64_t offset) {
    for (std::size_t i = 0; i < version_.labels.size(); ++i) {
      if (record[i] >= version_.labels[i].values) {
        throw DataError(fmt::format("{}: at byte {}: {} {} is out of range ({}: 0 to {})", path.string(),
                                    offset + i, version_.labels[i].name, record[i], version_.name,
                                    version_.labels[i].values - 1));
      }
    }
    labels_.push_back(record[version_.labels.size() - 1]);
    const std::uint8_t* planes = record.data() + version_.labels.size();
    const std::size_t begin = pixels_.size();
    pixels_.resize(begin + kPixels);
    for (std::size_t i = 0; i < kPlane; ++i)
      for (std::size_t channel = 0; channel < 3; ++channel)
        pixels_[begin + 3 * i + channel] = planes[channel * kPlane + i];
  }

  [[noreturn]] static void fail_to_read(const fs::path& path) {
    throw IoError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  }

  const Version& version_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

std::unique_ptr<Dataset> open_cifar(const fs::path& folder, Split split) {
  const Version& version = version_in(folder);
  Reader reader(version);
  for (const char* name : version.files(split)) reader.add_file(folder / name);
  return reader.held();
}

}  // namespace lockstep
