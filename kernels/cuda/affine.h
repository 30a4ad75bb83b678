// SPDX-License-Identifier: Apache-2.0
//
// The common part of convolution and linear layer: an AffineKernel around a library's products. The products
// only multiply dense tensors. Our own kernels do the rest around them: layout changes, bias, activation, the
// gradient of the bias, and accumulation of weight gradients. cuDNN itself accumulates input gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/affine.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/staging.h"

namespace lockstep {

// The layouts of the tensors, and the operations around the library's products.
struct CudaAffinePlan {
  LayoutStaging input;
  Layout output;
  Layout weights;
  // Input channels (linear layers: features) including padding, as the library gets them.
  std::int64_t physical_inputs = 0;
  CudaRows result;  // the output, one row per pixel
  bool bias = false;
  Activation activation = Activation::none;
  bool input_gradient = true;
  bool weight_gradient = true;
  bool adds_input_gradient = false;
};
// Both throw ConfigError for invalid shapes.
CudaAffinePlan plan_cuda_convolution(const ConvolutionShape& shape, const Layout& input);
CudaAffinePlan plan_cuda_linear(const LinearShape& shape, const Layout& input);

// library(direction) returns a product that reads x, w and y in the planned layouts and scratch memory
// aligned to kWorkspaceAlignment, and accepts Write::accumulate if its `adds` is set.
std::unique_ptr<AffineKernel> make_cuda_affine(const CudaAffinePlan& plan,
                                               const std::function<AffineProduct(AffineDirection)>& library);

}  // namespace lockstep
