// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation of NHWC activations, [rows, channels] with one row per pixel, in fp32 or a half type.
// Parameters and statistics are fp32; sums are fp64. Sums over rows are computed in a fixed order and
// relative to a value of each channel, so that a mean far from zero does not cost the variance its precision.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/batch_norm.h"

namespace lockstep {

// A planned batch norm. The arguments of the functions below are those of BatchNormForward and
// BatchNormBackward. residual_gradient may be y_gradient; without a residual, x_gradient may be y_gradient.
struct CudaBatchNorm {
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  BatchNormOptions options;

  // With a residual, x does not determine the input of the activation: forward keeps one bit per element, set
  // if the activation passed its input.
  bool keeps_passed() const { return options.residual && options.activation != Activation::none; }
  // Bytes of the memory that forward keeps for backward, and of scratch memory; both aligned to kAlignment.
  std::size_t saved_bytes() const;
  std::size_t scratch_bytes() const;

  // For several ranks, memory at the end of scratch: this rank's values for each channel (Moments, or
  // GradientSums), then those of all ranks in rank order. gather_told() gathers them and returns the latter,
  // [ranks, channels]. channel_bytes: size of one value.
  void* told(void* scratch) const;
  void* gather_told(Stream& stream, RankGather& across, void* scratch, std::size_t channel_bytes) const;

 private:
  std::size_t told_bytes() const;
};

void cuda_batch_norm_forward_training(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f);
void cuda_batch_norm_forward_evaluation(Stream& stream, const CudaBatchNorm& norm, const BatchNormForward& f);
void cuda_batch_norm_backward(Stream& stream, const CudaBatchNorm& norm, const BatchNormBackward& b);

}  // namespace lockstep
