// SPDX-License-Identifier: Apache-2.0
#include "data/sets/preloaded.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/tensor/buffer.h"
#include "data/prefetch.h"
#include "data/sets/read_in_threads.h"
#include "data/sets/wrapped.h"

namespace lockstep {
namespace {

// State of an image's memory. Only the thread that changes it to `filling` writes the image; others read it
// only when it is `ready`.
enum State : std::uint8_t { empty, filling, ready };

// A place holds a state for each image, then labels, then pixels.
struct PlaceLayout {
  PlaceLayout(const Dataset& dataset, int places) {
    const auto images = static_cast<std::size_t>((dataset.size() + places - 1) / places);
    labels = align_up(images);
    pixels = labels + align_up(images * sizeof(std::int32_t));
    bytes = pixels + images * static_cast<std::size_t>(dataset.image_shape().bytes());
  }
  std::size_t labels, pixels, bytes;  // offsets of labels and pixels, and the total size
};

class Preloaded final : public Wrapped {
 public:
  Preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory)
      : Wrapped(std::move(dataset)),
        memory_(std::move(memory)),
        layout_(this->dataset(), static_cast<int>(memory_.places.size())),
        image_bytes_(static_cast<std::size_t>(image_shape().bytes())) {}

  // Counts only this process's place of the shared memory.
  std::size_t memory_bytes() const override { return dataset().memory_bytes() + layout_.bytes; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && image.size() == image_bytes_, "sample {} of {} into {} bytes",
          index, size(), image.size());
    const auto places = static_cast<std::int64_t>(memory_.places.size());
    std::byte* place = memory_.places[static_cast<std::size_t>(index % places)];
    const auto at = static_cast<std::size_t>(index / places);
    std::atomic_ref<std::uint8_t> state(*reinterpret_cast<std::uint8_t*>(place + at));
    auto& label = *reinterpret_cast<std::int32_t*>(place + layout_.labels + at * sizeof(std::int32_t));
    std::byte* pixels = place + layout_.pixels + at * image_bytes_;
    if (state.load(std::memory_order_acquire) == ready) {
      std::memcpy(image.data(), pixels, image_bytes_);
      return label;
    }
    const std::int32_t found = dataset().read(index, image);
    std::uint8_t expected = empty;
    if (state.compare_exchange_strong(expected, filling, std::memory_order_relaxed)) {
      std::memcpy(pixels, image.data(), image_bytes_);
      label = found;
      state.store(ready, std::memory_order_release);
    }
    return found;
  }
  void will_read(std::int64_t index) const override {
    const auto places = static_cast<std::int64_t>(memory_.places.size());
    std::byte* place = memory_.places[static_cast<std::size_t>(index % places)];
    const auto at = static_cast<std::size_t>(index / places);
    if (std::atomic_ref(*reinterpret_cast<std::uint8_t*>(place + at)).load(std::memory_order_relaxed) !=
        ready)
      return dataset().will_read(index);
    const std::byte* pixels = place + layout_.pixels + at * image_bytes_;
    prefetch_lines({reinterpret_cast<const std::uint8_t*>(pixels), image_bytes_});
  }
  std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                              std::span<std::uint8_t> image) const override {
    return draws() ? dataset().read_augmented(index, draw, image) : read(index, image);
  }

 private:
  PreloadMemory memory_;
  PlaceLayout layout_;
  std::size_t image_bytes_;
};

}  // namespace

std::size_t PreloadMemory::bytes_of_place(const Dataset& dataset, int places) {
  return PlaceLayout(dataset, places).bytes;
}

std::unique_ptr<Dataset> preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory) {
  CHECK(!memory.places.empty(), "no place for images");
  return std::make_unique<Preloaded>(std::move(dataset), std::move(memory));
}

std::int64_t decode_now(const Dataset& preloaded, const DecodeOptions& options) {
  const std::int64_t shards = options.shard.size, first = options.shard.rank;
  std::atomic<std::int64_t> undecodable = 0;
  read_in_threads(
      {.end = (preloaded.size() - first + shards - 1) / shards,
       .threads = options.threads,
       .told_progress = options.told_progress},
      [&] {
        std::vector<std::uint8_t> image(static_cast<std::size_t>(preloaded.image_shape().bytes()));
        return [&, image](std::int64_t at) mutable {
          try {
            preloaded.read(first + at * shards, image);
          } catch (const DataError&) {
            if (options.on_error == OnError::stop) throw;
            ++undecodable;
          }
        };
      });
  return undecodable;
}

}  // namespace lockstep
