// SPDX-License-Identifier: Apache-2.0
//
// Winograd's F(4x4, 3x3) convolution on AVX-512, in three directions: a quarter of direct convolution's
// multiplications. Works through the image tile by tile, so that what is transformed stays in the
// second-level cache; with few tiles and many channels through the weights block by block instead.
//
// Activations lie in blocks of 16 channels ([N, C/16, H, W, 16]), weights as [O/16, I/16, 3, 3, 16 i, 16 o].
// Both may be half: elements become fp32 as tiles are read and are rounded as tiles are written; the gradient
// of the weights is fp32.
//
// Relative error against fp64: at most 2.4e-6 in the shipped networks (direct: 3e-7). The bits depend on the
// number of threads only in the gradient of the weights.
#pragma once

#include <cstddef>

#include "kernels/affine.h"

namespace lockstep {

class WinogradConvolution {
 public:
  // 3x3, stride 1, no dilation, no groups, multiples of 16 channels; a processor that has AVX-512.
  static bool supports(const ConvolutionShape& shape);

  // For the calling thread's present number of threads.
  WinogradConvolution(const ConvolutionShape& shape, DType type);

  std::size_t forward_scratch_bytes() const;
  std::size_t backward_data_scratch_bytes() const;
  std::size_t backward_weights_scratch_bytes() const;

  // The directions of AffineKernel. The operands' bias may be null; scratch is aligned to kAlignment.
  void forward(const AffineOperands& operands) const;
  void backward_data(const AffineOperands& operands) const;
  // Overwrites, in fp32.
  void backward_weights(const AffineOperands& operands) const;

 private:
  ConvolutionShape shape_;
  DType type_;  // of activations and weights
  int threads_;
};

}  // namespace lockstep
