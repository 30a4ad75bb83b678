// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/max_pooling.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/system/processors.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {

using dnnl::memory;

ElementPlaces::ElementPlaces(const memory::desc& desc)
    : strides_(onednn::strides_of(desc)), blocks_(onednn::blocks_of(desc)) {
  for (const auto& [dimension, elements] : blocks_)
    CHECK(dimension == 1, "dimension {} is blocked, expected blocks of channels (1) only", dimension);
}

std::int64_t ElementPlaces::at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
  std::int64_t place = n * strides_[0] + apart(h, w), inner = 1;
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    place += c % block->second * inner;
    c /= block->second;
    inner *= block->second;
  }
  return place + c * strides_[1];
}

std::int64_t ElementPlaces::with_padding(std::int64_t channels) const {
  std::int64_t block = 1;
  for (const auto& [dimension, elements] : blocks_) block *= elements;
  return (channels + block - 1) / block * block;
}

bool ElementPlaces::has_channels_side_by_side(std::int64_t lanes, std::int64_t channels) const {
  if (blocks_.empty()) return strides_[1] == 1 && channels % lanes == 0;
  return blocks_.size() == 1 && blocks_[0].second % lanes == 0;
}

CpuMaxPooling::CpuMaxPooling(const PoolingWindow& window, const Shape& in, const Shape& out,
                             const memory::desc& source, const memory::desc& destination,
                             const memory::desc& workspace)
    : window_(window),
      in_(in),
      out_(out),
      from_(source),
      to_(destination),
      kept_(workspace),
      kept_is_byte_(onednn::type_of(workspace) == memory::data_type::u8) {
  const auto fit = [&](int lanes) {
    return from_.has_channels_side_by_side(lanes, in[1]) && to_.has_channels_side_by_side(lanes, in[1]) &&
           kept_.has_channels_side_by_side(lanes, in[1]);
  };
  lanes_ = fit(16) ? 16 : fit(8) ? 8 : fit(4) ? 4 : 1;
  apart_ = true;
  for (std::size_t d = 0; d < 2; ++d) {
    // A single window is as good as windows that follow each other.
    if (out[d + 2] == 1) window_.strides[d] = std::max(window_.strides[d], window_.kernel[d]);
    apart_ = apart_ && window_.strides[d] >= window_.kernel[d];
  }
}

void CpuMaxPooling::run(DType type, const void* input, void* output, void* saved) const {
  with_element(type, [&](auto element) {
    using T = typename decltype(element)::type;
    const auto* from = static_cast<const T*>(input);
    auto* to = static_cast<T*>(output);
    if (lanes_ == 16) return run_lanes<16>(from, to, saved);
    if (lanes_ == 8) return run_lanes<8>(from, to, saved);
    if (lanes_ == 4) return run_lanes<4>(from, to, saved);
    run_lanes<1>(from, to, saved);
  });
}

void CpuMaxPooling::run_gradient(DType type, const void* output_gradient, const void* saved,
                                 void* input_gradient) const {
  with_element(type, [&](auto element) {
    using T = typename decltype(element)::type;
    const auto* from = static_cast<const T*>(output_gradient);
    auto* to = static_cast<T*>(input_gradient);
    if (lanes_ == 16) return run_gradient_lanes<16>(from, saved, to);
    if (lanes_ == 8) return run_gradient_lanes<8>(from, saved, to);
    run_gradient_lanes<4>(from, saved, to);
  });
}

CpuMaxPooling::Range CpuMaxPooling::range_of(std::int64_t position, std::size_t dimension) const {
  const std::int64_t first = position * window_.strides[dimension] - window_.padding[dimension];
  return {std::max<std::int64_t>(-first, 0), std::min(window_.kernel[dimension], in_[dimension + 2] - first)};
}

namespace {

// Larger for larger values; the same for -0 and 0; NaN has the largest. Keys of numbers are below that of NaN
// by at least 2. (One comparison of keys, because GCC 12 compares one by one where AVX-512 combines two
// comparisons.)
template <typename Int, typename Float>
LOCKSTEP_LANES_INLINE Int key_of(const Float& value) {
  const Int bits = same_bits<Int>(value + 0.0f);
  const Int key = bits ^ ((bits >> 31) & 0x7fffffff);
  return (bits & 0x7fffffff) > 0x7f800000 ? Int{} + 0x7fffffff : key;
}

}  // namespace

// Padded channels are processed like the others.
template <int W, typename T>
void CpuMaxPooling::run_lanes(const T* input, T* output, void* saved) const {
  const std::int64_t groups = (to_.with_padding(out_[1]) + W - 1) / W;
  deal(out_[0] * groups, [&](std::int64_t piece) {
    const std::int64_t n = piece / groups, c = piece % groups * W;
    const Plane<T> plane{.from = input + from_.at(n, c, 0, 0),
                         .to = output + to_.at(n, c, 0, 0),
                         .kept = saved == nullptr ? -1 : kept_.at(n, c, 0, 0)};
    for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t row = 0; row < out_[2]; ++row) {
        const Range rows = range_of(row, 0);
        for (std::int64_t column = 0; column < out_[3]; ++column)
          run_window<W>(plane, saved, row, column, rows, range_of(column, 1));
      }
    });
  });
}

// Positions in the window are numbered as in oneDNN.
template <int W, typename T>
LOCKSTEP_LANES_INLINE void CpuMaxPooling::run_window(const Plane<T>& plane, void* saved, std::int64_t row,
                                                     std::int64_t column, const Range& rows,
                                                     const Range& columns) const {
  using Float = typename Lanes<W>::Float;
  using Int = typename Lanes<W>::Int;
  const T* corner = plane.from + from_.apart(row * window_.strides[0] - window_.padding[0],
                                             column * window_.strides[1] - window_.padding[1]);
  Float largest{};
  Int place{}, largest_key = Int{} + std::numeric_limits<std::int32_t>::min();
  for (std::int64_t h = rows.begin; h < rows.end; ++h) {
    for (std::int64_t w = columns.begin; w < columns.end; ++w) {
      const Float value = load<Float>(corner + from_.apart(h, w));
      const Int key = key_of<Int>(value);
      largest = key > largest_key ? value : largest;
      place = key > largest_key ? Int{} + static_cast<std::int32_t>(h * window_.kernel[1] + w) : place;
      largest_key = key > largest_key ? key - (key == 0x7fffffff ? Int{} + 1 : Int{}) : largest_key;
    }
  }
  store(plane.to + to_.apart(row, column), largest);
  if (saved == nullptr) return;
  const std::int64_t kept = plane.kept + kept_.apart(row, column);
  if (kept_is_byte_) {
    store(static_cast<std::uint8_t*>(saved) + kept,
          bytes_of_words<Lanes<W>>(same_bits<typename Lanes<W>::Word>(place)));
  } else {
    store(static_cast<std::int32_t*>(saved) + kept, place);
  }
}

template <int W, typename T>
void CpuMaxPooling::run_gradient_lanes(const T* output_gradient, const void* saved, T* input_gradient) const {
  const std::int64_t groups = (from_.with_padding(in_[1]) + W - 1) / W;
  deal(in_[0] * groups, [&](std::int64_t piece) {
    const std::int64_t n = piece / groups, c = piece % groups * W;
    const Plane<T> plane{.from = output_gradient + to_.at(n, c, 0, 0),
                         .to = input_gradient + from_.at(n, c, 0, 0),
                         .kept = kept_.at(n, c, 0, 0)};
    for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
      for (std::int64_t row = 0; row < in_[2]; ++row) run_gradient_row<W>(plane, saved, row);
    });
  });
}

template <int W, typename T>
LOCKSTEP_LANES_INLINE void CpuMaxPooling::run_gradient_row(const Plane<T>& plane, const void* saved,
                                                           std::int64_t row) const {
  using Float = typename Lanes<W>::Float;
  using Int = typename Lanes<W>::Int;
  const std::int64_t y = (row + window_.padding[0]) / window_.strides[0],
                     h = (row + window_.padding[0]) % window_.strides[0];
  const bool in_rows = y < out_[2] && h < window_.kernel[0];
  std::int64_t x = 0,
               w = window_.padding[1];  // padding is smaller than a window: the first column is in window 0
  for (std::int64_t column = 0; column < in_[3]; ++column) {
    Float gradient{};
    if (in_rows && x < out_[3] && w < window_.kernel[1]) {
      const Int place = saved_place<W>(saved, plane.kept + kept_.apart(y, x));
      const Int here = Int{} + static_cast<std::int32_t>(h * window_.kernel[1] + w);
      gradient = place == here ? load<Float>(plane.from + to_.apart(y, x)) : gradient;
    }
    store(plane.to + from_.apart(row, column), gradient);
    if (++w == window_.strides[1]) {
      w = 0;
      ++x;
    }
  }
}

template <int W>
LOCKSTEP_LANES_INLINE typename Lanes<W>::Int CpuMaxPooling::saved_place(const void* saved,
                                                                        std::int64_t at) const {
  using Byte = typename Lanes<W>::Byte;
  using Int = typename Lanes<W>::Int;
  if (!kept_is_byte_) return load<Int>(static_cast<const std::int32_t*>(saved) + at);
  return same_bits<Int>(words_of_bytes<Lanes<W>>(load<Byte>(static_cast<const std::uint8_t*>(saved) + at)));
}

}  // namespace lockstep
