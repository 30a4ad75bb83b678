// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/convolve.h"

#include <cstdlib>
#include <new>

#include "tests/cuda_emulator/libraries/multiply.h"

namespace lockstep::emulator {
namespace {

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// An array of floats that is allocated without initialisation.
class Floats {
 public:
  explicit Floats(std::int64_t count)
      : data_(static_cast<float*>(
            std::malloc(static_cast<std::size_t>(count > 0 ? count : 1) * sizeof(float)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { std::free(data_); }
  float* data() const { return data_; }

 private:
  float* data_;
};

void copy(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}
void clear(std::int64_t count, float* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = 0;
}
void accumulate(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// Calls visit(offset in x, or -1 outside x; offset in the window) for each kernel position of one pixel of y.
template <typename Visit>
void each_place(const ConvolutionSizes& s, std::int64_t pixel, std::int64_t group, Visit visit) {
  const std::int64_t column = pixel % s.out_width, row = pixel / s.out_width % s.out_height;
  const std::int64_t image = pixel / (s.out_width * s.out_height);
  const std::int64_t top = row * s.stride_down - s.padding_top,
                     left = column * s.stride_right - s.padding_left;
  std::int64_t in_window = 0;
  for (std::int64_t i = 0; i < s.kernel_height; ++i) {
    const std::int64_t h = top + i * s.dilation_down;
    const bool inside = h >= 0 && h < s.height;
    for (std::int64_t j = 0; j < s.kernel_width; ++j, in_window += s.group_in()) {
      const std::int64_t w = left + j * s.dilation_right;
      const std::int64_t place =
          ((image * s.height + h) * s.width + w) * s.in_channels + group * s.group_in();
      visit(inside && w >= 0 && w < s.width ? place : -1, in_window);
    }
  }
}

void gather_windows(const ConvolutionSizes& s, const float* x, std::int64_t first, std::int64_t count,
                    std::int64_t group, float* windows) {
  const std::int64_t channels = s.group_in();
  for (std::int64_t pixel = first; pixel < first + count; ++pixel, windows += s.window()) {
    each_place(s, pixel, group, [&](std::int64_t from, std::int64_t to) {
      if (from < 0) {
        clear(channels, windows + to);
      } else {
        copy(x + from, channels, windows + to);
      }
    });
  }
}

void scatter_windows(const ConvolutionSizes& s, const float* windows, std::int64_t first, std::int64_t count,
                     std::int64_t group, float* x) {
  const std::int64_t channels = s.group_in();
  for (std::int64_t pixel = first; pixel < first + count; ++pixel, windows += s.window()) {
    each_place(s, pixel, group, [&](std::int64_t to, std::int64_t from) {
      if (to >= 0) accumulate(windows + from, channels, x + to);
    });
  }
}

// Calls visit(group, first pixel, pixels) until all pixels of all groups are processed.
template <typename Visit>
void each_block(const ConvolutionSizes& s, std::int64_t first, std::int64_t last, Visit visit) {
  for (std::int64_t group = 0; group < s.groups; ++group) {
    for (std::int64_t pixel = first; pixel < last; pixel += kPixelsAtATime) {
      visit(group, pixel, least(kPixelsAtATime, last - pixel));
    }
  }
}

void forward(const Convolution& c) {
  const ConvolutionSizes& s = c.sizes;
  const Floats windows(kPixelsAtATime * s.window());
  each_block(s, 0, s.pixels(), [&](std::int64_t group, std::int64_t pixel, std::int64_t count) {
    gather_windows(s, c.x, pixel, count, group, windows.data());
    if (c.store != nullptr) c.store->keep(windows.data(), count * s.window());
    multiply({.rows = count,
              .columns = s.group_out(),
              .depth = c.last - c.first,
              .a = {windows.data() + c.first, s.window(), 1},
              .b = {c.w + group * s.group_out() * s.window() + c.first, 1, s.window()},
              .result = c.y + pixel * s.out_channels + group * s.group_out(),
              .row_stride = s.out_channels,
              .block = c.block});
  });
}

void backward_data(const Convolution& c) {
  const ConvolutionSizes& s = c.sizes;
  const Floats windows(kPixelsAtATime * s.window());
  clear(s.x_elements(), c.x);
  each_block(s, 0, s.pixels(), [&](std::int64_t group, std::int64_t pixel, std::int64_t count) {
    const std::int64_t channel = group * s.group_out() + c.first;
    multiply({.rows = count,
              .columns = s.window(),
              .depth = c.last - c.first,
              .a = {c.y + pixel * s.out_channels + channel, s.out_channels, 1},
              .b = {c.w + channel * s.window(), s.window(), 1},
              .result = windows.data(),
              .row_stride = s.window(),
              .block = c.block});
    if (c.store != nullptr) c.store->keep(windows.data(), count * s.window());
    scatter_windows(s, windows.data(), pixel, count, group, c.x);
  });
}

void backward_filter(const Convolution& c) {
  const ConvolutionSizes& s = c.sizes;
  const Floats windows(kPixelsAtATime * s.window());
  clear(s.w_elements(), c.w);
  each_block(s, c.first, c.last, [&](std::int64_t group, std::int64_t pixel, std::int64_t count) {
    gather_windows(s, c.x, pixel, count, group, windows.data());
    if (c.store != nullptr) c.store->keep(windows.data(), count * s.window());
    multiply({.rows = s.group_out(),
              .columns = s.window(),
              .depth = count,
              .a = {c.y + pixel * s.out_channels + group * s.group_out(), 1, s.out_channels},
              .b = {windows.data(), s.window(), 1},
              .result = c.w + group * s.group_out() * s.window(),
              .row_stride = s.window(),
              .block = c.block,
              .add = true});
  });
}

}  // namespace

std::int64_t depth_of(const ConvolutionSizes& sizes, Direction direction) {
  switch (direction) {
    case Direction::forward:
      return sizes.window();
    case Direction::backward_data:
      return sizes.group_out();
    case Direction::backward_filter:
      break;
  }
  return sizes.pixels();
}

void convolve(const Convolution& convolution) {
  switch (convolution.direction) {
    case Direction::forward:
      return forward(convolution);
    case Direction::backward_data:
      return backward_data(convolution);
    case Direction::backward_filter:
      return backward_filter(convolution);
  }
}

}  // namespace lockstep::emulator
