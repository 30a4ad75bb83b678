// SPDX-License-Identifier: Apache-2.0
#include "data/formats/synthetic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/system/processors.h"

namespace lockstep {
namespace {

constexpr std::int64_t kCells = 4;  // per side of a pattern
constexpr std::int64_t kMostSyntheticBytes = std::int64_t{1} << 30;

std::uint32_t low(std::int64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::int64_t value) { return static_cast<std::uint32_t>(value >> 32); }

static_assert(std::endian::native == std::endian::little, "bytes of words are the same everywhere");

// The brightness of a pattern's cells in one channel, row by row.
using PatternCells = std::array<std::uint8_t, sizeof(PhiloxCounter)>;
static_assert(sizeof(PatternCells) == kCells * kCells);

PatternCells cells_of(std::int64_t label, std::int64_t channel, PhiloxKey key) {
  return std::bit_cast<PatternCells>(philox({low(channel), 0, low(label), 0}, key));
}

// Noise is made kBlocks blocks at a time, word by word, so that it is vectorized.
constexpr std::size_t kBlocks = 16;
constexpr std::size_t kPiece = kBlocks * sizeof(PhiloxCounter);

void fill_with_noise(std::uint8_t* image, std::size_t bytes, std::int64_t index, PhiloxKey key) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    for (std::size_t at = 0; at < bytes; at += kPiece) {
      std::uint32_t words[4][kBlocks];
      for (std::size_t i = 0; i < kBlocks; ++i) {
        const auto block = static_cast<std::uint32_t>(at / sizeof(PhiloxCounter) + i);
        const PhiloxCounter made = philox({block, 0, low(index), high(index)}, key);
        for (std::size_t word = 0; word < 4; ++word) words[word][i] = made[word];
      }
      std::memcpy(image + at, words, std::min(kPiece, bytes - at));
    }
  });
}

class Synthetic final : public Dataset {
 public:
  Synthetic(const SyntheticOptions& options, Split split)
      : shape_{.height = options.height, .width = options.width, .channels = options.channels},
        classes_(options.classes),
        size_(split == Split::train ? options.train_samples : options.test_samples),
        patterns_(key_for(0, "synthetic patterns")),
        noise_(key_for(0, split == Split::train ? "synthetic train" : "synthetic test")) {
    if (shape_.bytes() > kMostSyntheticBytes) {
      throw ConfigError(fmt::format("data.synthetic: images of {}x{}x{} are too large; the limit is {} bytes",
                                    shape_.height, shape_.width, shape_.channels, kMostSyntheticBytes));
    }
    if (size_ < classes_) {
      const char* key = split == Split::train ? "train_samples" : "test_samples";
      throw ConfigError(fmt::format(
          "data.synthetic.{} = {}: at least one sample for each of data.synthetic.classes = {} is required",
          key, size_, classes_));
    }
  }

  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::optional<std::int32_t> label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index % classes_);
  }
  std::vector<std::int64_t> class_counts() const override {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(classes_), size_ / classes_);
    for (std::int64_t i = 0; i < size_ % classes_; ++i) ++counts[static_cast<std::size_t>(i)];
    return counts;
  }
  bool verified() const override { return true; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size_ && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size_, image.size());
    const std::int64_t label = index % classes_;
    fill_with_noise(image.data(), image.size(), index, noise_);
    const std::int64_t row_bytes = shape_.width * shape_.channels;
    std::vector<std::uint8_t> row(static_cast<std::size_t>(row_bytes));
    std::int64_t drawn = -1;
    for (std::int64_t y = 0; y < shape_.height; ++y) {
      const std::int64_t cell = y * kCells / shape_.height;
      if (cell != drawn) draw(label, cell, row);
      drawn = cell;
      std::uint8_t* pixels = image.data() + y * row_bytes;
      for (std::int64_t x = 0; x < row_bytes; ++x)
        pixels[x] = static_cast<std::uint8_t>((pixels[x] + row[static_cast<std::size_t>(x)]) / 2);
    }
    return static_cast<std::int32_t>(label);
  }

 private:
  // Writes a row of pixels from a row of the pattern's cells.
  void draw(std::int64_t label, std::int64_t cell_row, std::vector<std::uint8_t>& row) const {
    for (std::int64_t channel = 0; channel < shape_.channels; ++channel) {
      const PatternCells cells = cells_of(label, channel, patterns_);
      for (std::int64_t x = 0; x < shape_.width; ++x) {
        const std::int64_t cell = cell_row * kCells + x * kCells / shape_.width;
        row[static_cast<std::size_t>(x * shape_.channels + channel)] = cells[static_cast<std::size_t>(cell)];
      }
    }
  }

  ImageShape shape_;
  std::int64_t classes_, size_;
  PhiloxKey patterns_, noise_;
};

}  // namespace

std::unique_ptr<Dataset> open_synthetic(const SyntheticOptions& options, Split split) {
  return std::make_unique<Synthetic>(options, split);
}

}  // namespace lockstep
