// SPDX-License-Identifier: Apache-2.0
//
// Max and average pooling over square windows of [N, C, H, W].
#pragma once

#include "core/stream.h"
#include "core/tensor/layout.h"

namespace lockstep {

enum class PoolingKind {
  max,
  average,  // over the elements inside the image: padding does not count
};

struct PoolingOptions {
  PoolingKind kind = PoolingKind::max;
  std::int64_t kernel = 2;
  std::int64_t stride = 2;
  std::int64_t padding = 0;
  bool global = false;  // one window over the whole image; kernel, stride and padding are ignored

  std::int64_t out_size(std::int64_t in_size) const {
    return global ? 1 : (in_size + 2 * padding - kernel) / stride + 1;
  }
};

class PoolingKernel {
 public:
  virtual ~PoolingKernel() = default;

  const Layout& input() const { return input_; }
  const Layout& output() const { return output_; }
  // Memory that forward writes and backward reads (the place of each maximum); 0 for average pooling.
  std::size_t saved_bytes() const { return saved_bytes_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  // saved may be null if no backward follows.
  virtual void forward(Stream& stream, const void* input, void* output, void* saved, void* scratch) = 0;
  virtual void backward(Stream& stream, const void* output_gradient, const void* saved, void* input_gradient,
                        void* scratch) = 0;

 protected:
  Layout input_;
  Layout output_;
  std::size_t saved_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
