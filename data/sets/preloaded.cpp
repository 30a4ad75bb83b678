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

// State of the memory of an image or mask. Only the thread that changes it to `filling` writes the pixels;
// others read them only when it is `ready`.
enum State : std::uint8_t { empty, filling, ready };

// A place holds a state for each image, then one for each mask, labels, images and masks.
struct PlaceLayout {
  PlaceLayout(const Dataset& dataset, int places) {
    const auto images = static_cast<std::size_t>((dataset.size() + places - 1) / places);
    const ImageShape shape = dataset.image_shape();
    image_bytes = static_cast<std::size_t>(shape.bytes());
    mask_bytes = dataset.has_masks() ? static_cast<std::size_t>(shape.height * shape.width) : 0;
    mask_states = images;
    labels = align_up(dataset.has_masks() ? 2 * images : images);
    pixels = labels + align_up(images * sizeof(std::int32_t));
    masks = pixels + images * image_bytes;
    bytes = masks + images * mask_bytes;
  }
  std::size_t image_bytes, mask_bytes;
  std::size_t mask_states, labels, pixels, masks;  // offsets
  std::size_t bytes;                               // of the place
};

class Preloaded final : public Wrapped {
 public:
  Preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory)
      : Wrapped(std::move(dataset)),
        memory_(std::move(memory)),
        layout_(this->dataset(), static_cast<int>(memory_.places.size())) {}

  // Counts only this process's place of the shared memory.
  std::size_t memory_bytes() const override { return dataset().memory_bytes() + layout_.bytes; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && image.size() == layout_.image_bytes,
          "sample {} of {} into {} bytes", index, size(), image.size());
    const Place place = place_of(index);
    // All threads and processes that read the image store the same label.
    std::atomic_ref<std::int32_t> label(
        *reinterpret_cast<std::int32_t*>(place.memory + layout_.labels + place.at * sizeof(std::int32_t)));
    copy_or_read(image, place.memory + place.at, pixels_of(place),
                 [&] { label.store(dataset().read(index, image), std::memory_order_relaxed); });
    return label.load(std::memory_order_relaxed);
  }
  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    CHECK(has_masks() && index >= 0 && index < size() && mask.size() == layout_.mask_bytes,
          "mask {} of {} into {} bytes", index, size(), mask.size());
    const Place place = place_of(index);
    copy_or_read(mask, place.memory + layout_.mask_states + place.at,
                 place.memory + layout_.masks + place.at * layout_.mask_bytes,
                 [&] { dataset().read_mask(index, mask); });
  }
  void will_read(std::int64_t index) const override {
    const Place place = place_of(index);
    if (state_at(place.memory + place.at).load(std::memory_order_relaxed) != ready)
      return dataset().will_read(index);
    prefetch_lines({reinterpret_cast<const std::uint8_t*>(pixels_of(place)), layout_.image_bytes});
  }
  std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                              std::span<std::uint8_t> image) const override {
    return draws() ? dataset().read_augmented(index, draw, image) : read(index, image);
  }

 private:
  struct Place {
    std::byte* memory;
    std::size_t at;  // the sample's number in it
  };
  Place place_of(std::int64_t index) const {
    const auto places = static_cast<std::int64_t>(memory_.places.size());
    return {.memory = memory_.places[static_cast<std::size_t>(index % places)],
            .at = static_cast<std::size_t>(index / places)};
  }
  std::byte* pixels_of(const Place& place) const {
    return place.memory + layout_.pixels + place.at * layout_.image_bytes;
  }
  static std::atomic_ref<std::uint8_t> state_at(std::byte* byte) {
    return std::atomic_ref<std::uint8_t>(*reinterpret_cast<std::uint8_t*>(byte));
  }

  // Copies the kept bytes to `out` if they are ready. Otherwise calls read(), which fills `out`, and keeps
  // the bytes.
  template <typename Read>
  static void copy_or_read(std::span<std::uint8_t> out, std::byte* state_byte, std::byte* kept, Read read) {
    const std::atomic_ref<std::uint8_t> state = state_at(state_byte);
    if (state.load(std::memory_order_acquire) == ready) {
      std::memcpy(out.data(), kept, out.size());
      return;
    }
    read();
    std::uint8_t expected = empty;
    if (!state.compare_exchange_strong(expected, filling, std::memory_order_relaxed)) return;
    std::memcpy(kept, out.data(), out.size());
    state.store(ready, std::memory_order_release);
  }

  PreloadMemory memory_;
  PlaceLayout layout_;
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
        const ImageShape shape = preloaded.image_shape();
        const bool masks = preloaded.has_masks();
        std::vector<std::uint8_t> image(static_cast<std::size_t>(shape.bytes()));
        std::vector<std::uint8_t> mask(masks ? static_cast<std::size_t>(shape.height * shape.width) : 0);
        return [&, masks, image, mask](std::int64_t at) mutable {
          const std::int64_t sample = first + at * shards;
          try {
            preloaded.read(sample, image);
            if (masks) preloaded.read_mask(sample, mask);
          } catch (const DataError&) {
            if (options.on_error == OnError::stop) throw;
            ++undecodable;
          }
        };
      });
  return undecodable;
}

}  // namespace lockstep
