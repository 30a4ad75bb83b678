// SPDX-License-Identifier: Apache-2.0
//
// Max pooling with PyTorch's semantics for special values: NaN is larger than all numbers, and the maximum of
// only -infinity is -infinity. oneDNN ignores NaN and starts from the lowest finite number. Adjacent channels
// are compared as vectors.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/lanes.h"

namespace lockstep {

// Element offsets in a blocked oneDNN tensor whose blocks are of channels.
class ElementPlaces {
 public:
  ElementPlaces() = default;
  explicit ElementPlaces(const dnnl::memory::desc& desc);

  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const;
  // The distance in elements between pixels of one channel.
  std::int64_t apart(std::int64_t rows, std::int64_t columns) const {
    return rows * strides_[2] + columns * strides_[3];
  }
  std::int64_t with_padding(std::int64_t channels) const;
  // Returns true if groups of `lanes` channels, from channel 0 on, are contiguous.
  bool has_channels_side_by_side(std::int64_t lanes, std::int64_t channels) const;

 private:
  dnnl::memory::dims strides_;
  std::vector<std::pair<int, std::int64_t>> blocks_;
};

// By dimension: height, width.
struct PoolingWindow {
  dnnl::memory::dims strides, kernel, padding;
};

class CpuMaxPooling {
 public:
  CpuMaxPooling() = default;
  // For [N, C, H, W] tensors with these descriptions. The workspace stores the position of each maximum in
  // its window, in oneDNN's format.
  CpuMaxPooling(const PoolingWindow& window, const Shape& in, const Shape& out,
                const dnnl::memory::desc& source, const dnnl::memory::desc& destination,
                const dnnl::memory::desc& workspace);

  // Returns true if channels are compared one by one, which is slower than oneDNN.
  bool is_slow() const { return lanes_ == 1; }

  // type: of input and output. saved: the workspace, or null.
  void run(DType type, const void* input, void* output, void* saved) const;

  // Returns true if no pixel is in two windows and channels are compared in groups: then no gradient is a
  // sum.
  bool has_gradient() const { return apart_ && !is_slow(); }
  // Writes every pixel once; type: of both gradients. saved: the workspace that run() or oneDNN wrote.
  void run_gradient(DType type, const void* output_gradient, const void* saved, void* input_gradient) const;

 private:
  // The rows or columns of a window that lie inside the image.
  struct Range {
    std::int64_t begin, end;
  };
  Range range_of(std::int64_t position, std::size_t dimension) const;
  template <int W, typename T>
  void run_lanes(const T* input, T* output, void* saved) const;
  template <int W, typename T>
  void run_gradient_lanes(const T* output_gradient, const void* saved, T* input_gradient) const;
  // A group of channels of a sample: where its first pixel is. kept: an offset in the workspace.
  template <typename T>
  struct Plane {
    const T* from;
    T* to;
    std::int64_t kept;
  };
  template <int W, typename T>
  void run_window(const Plane<T>& plane, void* saved, std::int64_t row, std::int64_t column,
                  const Range& rows, const Range& columns) const;
  // plane.from: of the output's gradient, plane.to: of the input's.
  template <int W, typename T>
  void run_gradient_row(const Plane<T>& plane, const void* saved, std::int64_t row) const;
  template <int W>
  typename Lanes<W>::Int saved_place(const void* saved, std::int64_t at) const;

  PoolingWindow window_;
  Shape in_, out_;
  ElementPlaces from_, to_, kept_;
  bool kept_is_byte_ = false;
  bool apart_ = false;  // no pixel is in two windows
  int lanes_ = 1;
};

}  // namespace lockstep
