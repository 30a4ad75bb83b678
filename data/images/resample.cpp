// SPDX-License-Identifier: Apache-2.0
#include "data/images/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr int kBits = 22;  // fraction bits: 8 bits are for a pixel, and sums of weights stay below 2
constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::uint8_t to_byte(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

// The source pixels, and their weights, of each target pixel of a line.
struct Taps {
  struct Range {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  std::vector<Range> ranges;          // source pixels of each target pixel
  std::vector<std::int32_t> weights;  // [count, most]
  std::int64_t most = 0;

  const std::int32_t* of(std::int64_t pixel) const { return weights.data() + pixel * most; }

  // Resizes [begin, begin + length) of a line of `size` pixels to `count` pixels. Source pixels are weighted
  // by their share inside [low, high).
  void make(std::int64_t size, double begin, double length, std::int64_t count, double low, double high) {
    const double scale = length / static_cast<double>(count);
    const double reach = std::max(scale, 1.0);  // half width of the triangle filter
    most = 2 * static_cast<std::int64_t>(std::ceil(reach)) + 1;
    ranges.resize(static_cast<std::size_t>(count));
    weights.assign(static_cast<std::size_t>(count * most), 0);
    raw_.resize(static_cast<std::size_t>(most));
    for (std::int64_t pixel = 0; pixel < count; ++pixel) {
      const double center = begin + (static_cast<double>(pixel) + 0.5) * scale;
      const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - reach + 0.5));
      const auto end = std::min(size, static_cast<std::int64_t>(center + reach + 0.5));
      double sum = 0;
      for (std::int64_t i = first; i < end; ++i) {
        const double left = std::max(low - static_cast<double>(i), 0.0);
        const double right = std::min(high - static_cast<double>(i), 1.0);
        const double distance = std::abs((static_cast<double>(i) - center + (left + right) / 2) / reach);
        const double weight = std::max(0.0, 1.0 - distance) * std::max(0.0, right - left);
        raw_[static_cast<std::size_t>(i - first)] = weight;
        sum += weight;
      }
      ranges[static_cast<std::size_t>(pixel)] = {.first = first, .count = end - first};
      for (std::int64_t i = 0; i < end - first; ++i)
        weights[static_cast<std::size_t>(pixel * most + i)] = static_cast<std::int32_t>(
            std::floor(raw_[static_cast<std::size_t>(i)] / sum * (1 << kBits) + 0.5));
    }
  }

 private:
  std::vector<double> raw_;
};

template <int kChannels>
void resample_row(const std::uint8_t* from, const Taps& taps, std::int64_t channels, std::uint8_t* to) {
  const std::int64_t step = kChannels > 0 ? kChannels : channels;
  for (std::size_t pixel = 0; pixel < taps.ranges.size(); ++pixel) {
    const auto [first, count] = taps.ranges[pixel];
    const std::int32_t* weights = taps.of(static_cast<std::int64_t>(pixel));
    const std::uint8_t* source = from + first * step;
    if constexpr (kChannels == 3) {
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (std::int64_t i = 0; i < count; ++i, source += 3) {
        red += source[0] * weights[i];
        green += source[1] * weights[i];
        blue += source[2] * weights[i];
      }
      *to++ = to_byte(red);
      *to++ = to_byte(green);
      *to++ = to_byte(blue);
    } else {
      for (std::int64_t channel = 0; channel < step; ++channel) {
        std::int32_t sum = kHalf;
        for (std::int64_t i = 0; i < count; ++i) sum += source[i * step + channel] * weights[i];
        *to++ = to_byte(sum);
      }
    }
  }
}

// rows: consecutive rows of the source, from `first_row`.
void resample_column(const std::vector<std::uint8_t>& rows, std::int64_t first_row, std::int64_t row_bytes,
                     const Taps& taps, std::vector<std::int32_t>& sums, std::uint8_t* to) {
  sums.resize(static_cast<std::size_t>(row_bytes));
  for (std::size_t pixel = 0; pixel < taps.ranges.size(); ++pixel, to += row_bytes) {
    const auto [first, count] = taps.ranges[pixel];
    const std::int32_t* weights = taps.of(static_cast<std::int64_t>(pixel));
    std::fill(sums.begin(), sums.end(), kHalf);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t* row = rows.data() + (first + i - first_row) * row_bytes;
      const std::int32_t weight = weights[i];
      for (std::int64_t at = 0; at < row_bytes; ++at) sums[static_cast<std::size_t>(at)] += row[at] * weight;
    }
    for (std::int64_t at = 0; at < row_bytes; ++at) to[at] = to_byte(sums[static_cast<std::size_t>(at)]);
  }
}

// A thread's memory, reused for all its images.
struct Workspace {
  Taps across, down;
  std::vector<std::uint8_t> rows;
  std::vector<std::int32_t> sums;
};

}  // namespace

void resample(const ImageView& image, const ImageBox& box, const ImageShape& shape,
              std::span<std::uint8_t> to) {
  const auto height = static_cast<double>(image.shape.height), width = static_cast<double>(image.shape.width);
  CHECK(box.y >= 0 && box.x >= 0 && box.height > 0 && box.width > 0 && box.y + box.height <= height + 1e-6 &&
            box.x + box.width <= width + 1e-6,
        "{} x {} at {}, {} of {} x {}", box.height, box.width, box.y, box.x, height, width);
  CHECK(image.shape.channels == shape.channels && static_cast<std::int64_t>(to.size()) == shape.bytes(),
        "{} channels into {} bytes", image.shape.channels, to.size());
  thread_local Workspace workspace;
  auto& [across, down, rows, sums] = workspace;
  const ImageBox counted = image.counted.value_or(ImageBox{0, 0, height, width});
  across.make(image.shape.width, box.x, box.width, shape.width, counted.x, counted.x + counted.width);
  down.make(image.shape.height, box.y, box.height, shape.height, counted.y, counted.y + counted.height);
  const std::int64_t first = down.ranges.front().first;
  const std::int64_t end = down.ranges.back().first + down.ranges.back().count;
  const std::int64_t row_bytes = shape.width * shape.channels;
  rows.resize(static_cast<std::size_t>((end - first) * row_bytes));
  for (std::int64_t y = first; y < end; ++y) {
    const std::uint8_t* from = image.pixels + y * image.row_bytes;
    std::uint8_t* row = rows.data() + (y - first) * row_bytes;
    if (shape.channels == 3) {
      resample_row<3>(from, across, 3, row);
    } else {
      resample_row<0>(from, across, shape.channels, row);
    }
  }
  resample_column(rows, first, row_bytes, down, sums, to.data());
}

}  // namespace lockstep
