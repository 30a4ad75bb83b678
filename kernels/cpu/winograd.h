// SPDX-License-Identifier: Apache-2.0
//
// Winograd's F(4x4, 3x3) convolution on AVX-512, AVX2 and NEON, in three directions, with a quarter of direct
// convolution's multiplications. Processes the image in groups of tiles, so that the transformed data stay in
// the L2 cache; with many channels it processes the weights block by block instead.
//
// Activations are blocked by B = 16, 8 or 4 channels ([N, C/B, H, W, B]), weights are [O/B, I/B, 3, 3, B i, B
// o]. Both may be bf16: elements are converted to fp32 when tiles are read and rounded when tiles are
// written. The weight gradient is fp32.
//
// Relative error against fp64: at most 2.4e-6 in the shipped networks (direct: 3e-7). Only the weight
// gradient's bits depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/affine.h"

namespace lockstep {

class WinogradConvolution {
 public:
  // B: 16 with AVX-512, for channels in multiples of 16; else 8 with AVX2 or AVX-512, for channels in
  // multiples of 8; 4 with Arm's NEON, for channels in multiples of 4. 0: not supported. The shape must be
  // 3x3, stride 1, padding at most 2, without dilation and groups.
  static std::int64_t channel_block(const ConvolutionShape& shape);
  static bool supports(const ConvolutionShape& shape) { return channel_block(shape) != 0; }

  // Plans for the calling thread's current number of threads; calls take as many or fewer. type: fp32 or
  // bf16.
  WinogradConvolution(const ConvolutionShape& shape, DType type);

  std::int64_t block() const { return block_; }
  std::size_t forward_scratch_bytes() const;
  std::size_t backward_data_scratch_bytes() const;
  std::size_t backward_weights_scratch_bytes() const;

  // The directions of AffineKernel. The operands' bias may be null; scratch is aligned to kAlignment.
  void forward(const AffineOperands& operands) const;
  void backward_data(const AffineOperands& operands) const;
  // Overwrites the gradient, in fp32.
  void backward_weights(const AffineOperands& operands) const;

 private:
  // A team of another size than the other kernels' would cost the creation of threads.
  int threads() const;

  ConvolutionShape shape_;
  DType type_;          // of activations and weights
  std::int64_t block_;  // B
  int planned_threads_;
};

}  // namespace lockstep
