// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation of NHWC activations, [rows, channels] with a row for each pixel, in fp32 or a half
// type; parameters, statistics and sums are fp32 and wider. Sums over rows are taken in a fixed order, and
// around a value of each channel: a mean far from zero does not drown the variance.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/batch_norm.h"

namespace lockstep {

// The arguments of its functions mean what BatchNormForward and BatchNormBackward say; y_gradient may be
// residual_gradient, and without a residual x_gradient.
struct CudaBatchNorm {
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  BatchNormOptions options;

  // With a residual the input of the activation is not known from x: whether it passed is kept, a bit each.
  bool keeps_passed() const { return options.residual && options.activation != Activation::none; }
  // Aligned to kAlignment, both.
  std::size_t saved_bytes() const;
  std::size_t scratch_bytes() const;

  // Of several ranks, at the end of scratch: what this rank tells the others of each channel (Moments, or
  // GradientSums), and behind it what all tell, once gathered.
  void* told(void* scratch) const;
  void* gather_told(Stream& stream, RankGather& across, void* scratch, std::size_t channel_bytes) const;

 private:
  std::size_t told_bytes() const;
};

void cuda_batch_norm_forward_training(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f);
void cuda_batch_norm_forward_evaluation(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f);
void cuda_batch_norm_backward(Stream& stream, const CudaBatchNorm& norm, const BatchNormBackward& b);

}  // namespace lockstep
