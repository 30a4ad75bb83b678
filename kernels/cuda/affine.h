// SPDX-License-Identifier: Apache-2.0
//
// What convolution and linear layer share: an AffineKernel around a library's products. The products know
// operands and workspace only; layouts, bias, activation, the bias' gradient and adding to a gradient are
// done here, by our own kernels.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/affine.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/staging.h"

namespace lockstep {

// One direction, by one of several ways to compute it.
struct CudaProduct {
  std::string name;
  std::size_t workspace_bytes = 0;
  // Whether run() takes Write::accumulate.
  bool adds = false;
  std::function<void(Stream& stream, const AffineOperands& operands, Write write)> run;
};

struct CudaProducts {
  CudaProduct forward;
  std::optional<CudaProduct> backward_data;
  CudaProduct backward_weights;
};

struct CudaAffinePlan {
  LayoutStaging input;
  Layout output;
  Layout weights;
  CudaRows result;  // the output, a row for each pixel
  bool bias = false;
  Activation activation = Activation::none;
};

std::unique_ptr<AffineKernel> make_cuda_affine(const CudaAffinePlan& plan, CudaProducts products);

// How a convolution lies in memory.
struct CudaConvolutionPlan {
  CudaAffinePlan affine;
  ConvolutionShape physical;  // with the input's channels as padded
};
// Throws ConfigError for shapes that make no sense.
CudaConvolutionPlan plan_cuda_convolution(const ConvolutionShape& shape, const Layout& input);

struct CudaLinearPlan {
  CudaAffinePlan affine;
  LinearShape physical;  // with the input's features as padded
};
CudaLinearPlan plan_cuda_linear(const LinearShape& shape, const Layout& input);

}  // namespace lockstep
