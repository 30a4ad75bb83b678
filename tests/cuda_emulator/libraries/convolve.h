// SPDX-License-Identifier: Apache-2.0
//
// Float convolutions as matrix products: x [batch][height][width][in_channels], w
// [out_channels][kernel height][kernel width][in_channels / groups], y
// [batch][out_height][out_width][out_channels]. All memory belongs to one thread; compiled for speed, without
// sanitizers.
#pragma once

#include <cstdint>

namespace lockstep::emulator {

struct ConvolutionSizes {
  std::int64_t batch, groups, in_channels, out_channels;
  std::int64_t height, width, out_height, out_width, kernel_height, kernel_width;
  std::int64_t padding_top, padding_left, stride_down, stride_right, dilation_down, dilation_right;

  std::int64_t pixels() const { return batch * out_height * out_width; }
  std::int64_t group_in() const { return in_channels / groups; }
  std::int64_t group_out() const { return out_channels / groups; }
  // The number of products summed for one element of y.
  std::int64_t window() const { return kernel_height * kernel_width * group_in(); }
  std::int64_t x_elements() const { return batch * height * width * in_channels; }
  std::int64_t w_elements() const { return out_channels * window(); }
};

enum class Direction { forward, backward_data, backward_filter };
// The number of terms summed for one element of the direction's result; this sum may be split.
std::int64_t depth_of(const ConvolutionSizes& sizes, Direction direction);

// The maximum number of pixels whose windows are expanded at a time.
inline constexpr std::int64_t kPixelsAtATime = 256;

// Processes the windows of some pixels, [pixels][window], before they are multiplied. An algorithm that keeps
// them in device memory copies them there and back.
class WindowStore {
 public:
  virtual ~WindowStore() = default;
  virtual void keep(float* windows, std::int64_t count) = 0;
};

struct Convolution {
  ConvolutionSizes sizes;
  Direction direction;
  // The direction's result is written completely; the other two are read.
  float* x;
  float* w;
  float* y;
  // The range of the sums' terms to compute.
  std::int64_t first, last;
  std::int64_t block;  // terms per block of a sum, see multiply.h
  WindowStore* store = nullptr;
};
void convolve(const Convolution& convolution);

}  // namespace lockstep::emulator
