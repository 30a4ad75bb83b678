// SPDX-License-Identifier: Apache-2.0
#include "data/sets/resident.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "data/sets/read_in_threads.h"
#include "data/sets/wrapped.h"

namespace lockstep {
namespace {

// Size of an upload chunk: one is filled while the previous one is copied.
constexpr std::int64_t kUploadBytes = std::int64_t{16} << 20;

// A chunk of images that is copied to the device at once.
struct UploadChunk {
  UploadChunk(std::size_t bytes, Device device)
      : memory(bytes, device, MemoryKind::pinned_host), copied(device) {}
  Buffer memory;
  Event copied;
};

class Resident final : public Wrapped {
 public:
  Resident(std::shared_ptr<const Dataset> dataset, Device device)
      : Wrapped(std::move(dataset)),
        image_bytes_(image_shape().bytes()),
        images_(resident_bytes(*this), device),
        labels_(static_cast<std::size_t>(size())) {}

  std::span<const std::byte> on_device() const override { return {images_.data(), images_.bytes()}; }
  std::size_t memory_bytes() const override {
    return dataset().memory_bytes() + labels_.capacity() * sizeof(std::int32_t);
  }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    if (!image.empty()) return dataset().read(index, image);
    if (const auto reason = undecodable_.find(index); reason != undecodable_.end())
      throw DataError(reason->second);
    return labels_[static_cast<std::size_t>(index)];
  }
  std::int32_t read_augmented(std::int64_t index, const Draw&, std::span<std::uint8_t> image) const override {
    return read(index, image);
  }

  void upload(const Dataset& source, const ResidentOptions& options) {
    const std::int64_t images = std::clamp(kUploadBytes / image_bytes_, std::int64_t{1}, size());
    const std::int64_t chunks = (size() + images - 1) / images;
    const auto chunk_bytes = static_cast<std::size_t>(images * image_bytes_);
    std::array<UploadChunk, 2> turns{UploadChunk(chunk_bytes, options.device),
                                     UploadChunk(chunk_bytes, options.device)};
    Stream stream(options.device, StreamUse::copy);
    std::exception_ptr failed;
    for (std::int64_t i = 0; i < chunks && failed == nullptr; ++i) {
      const std::int64_t begin = (chunks * options.shard.rank / options.shard.size + i) % chunks * images;
      const std::int64_t end = std::min(begin + images, size());
      UploadChunk& chunk = turns[static_cast<std::size_t>(i % 2)];
      chunk.copied.synchronize();
      failed = read_chunk(source, begin, end, chunk.memory.data(), options.threads);
      stream.copy(images_.data() + begin * image_bytes_, chunk.memory.data(),
                  static_cast<std::size_t>((end - begin) * image_bytes_));
      stream.record(chunk.copied);
    }
    stream.synchronize();
    if (failed != nullptr) std::rethrow_exception(failed);
  }

 private:
  // Returns an error that ends the upload, else null.
  std::exception_ptr read_chunk(const Dataset& source, std::int64_t begin, std::int64_t end, std::byte* to,
                                int threads) {
    std::mutex mutex;
    std::exception_ptr failed;
    const auto read = [&](std::int64_t sample) {
      const std::span<std::uint8_t> image(
          reinterpret_cast<std::uint8_t*>(to + (sample - begin) * image_bytes_),
          static_cast<std::size_t>(image_bytes_));
      try {
        labels_[static_cast<std::size_t>(sample)] = source.read(sample, image);
      } catch (const DataError& error) {
        const std::lock_guard lock(mutex);
        undecodable_.emplace(sample, error.what());
      }
    };
    try {
      read_in_threads({.begin = begin, .end = end, .threads = threads}, [&] { return read; });
    } catch (...) {
      failed = std::current_exception();
    }
    return failed;
  }

  std::int64_t image_bytes_;
  Buffer images_;
  std::vector<std::int32_t> labels_;
  std::map<std::int64_t, std::string> undecodable_;
};

}  // namespace

std::size_t resident_bytes(const Dataset& dataset) {
  return static_cast<std::size_t>(dataset.size() * dataset.image_shape().bytes());
}

std::unique_ptr<Dataset> resident(std::shared_ptr<const Dataset> dataset,
                                  std::shared_ptr<const Dataset> source, const ResidentOptions& options) {
  CHECK(!dataset->draws(), "a dataset with random augmentation cannot be kept in device memory");
  CHECK(options.threads > 0, "{} threads", options.threads);
  if (source == nullptr) source = dataset;
  auto made = std::make_unique<Resident>(std::move(dataset), options.device);
  if (options.read) made->upload(*source, options);
  return made;
}

}  // namespace lockstep
