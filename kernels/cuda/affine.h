// SPDX-License-Identifier: Apache-2.0
//
// What convolution and linear layer share: an AffineKernel around a library's products. These multiply dense
// tensors and know nothing else; layouts, bias, activation, the bias' gradient and adding to a gradient of
// weights are done around them, by our own kernels. cuDNN itself adds to an input's gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/affine.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/staging.h"

namespace lockstep {

// How the tensors lie in memory, and what is done around the library's products.
struct CudaAffinePlan {
  LayoutStaging input;
  Layout output;
  Layout weights;
  // Channels of the input (linear layers: features) as the library sees them: with padding.
  std::int64_t physical_inputs = 0;
  CudaRows result;  // the output, a row for each pixel
  bool bias = false;
  Activation activation = Activation::none;
  bool input_gradient = true;
  bool weight_gradient = true;
  bool adds_input_gradient = false;
};
// Throw ConfigError for shapes that make no sense.
CudaAffinePlan plan_cuda_convolution(const ConvolutionShape& shape, const Layout& input);
CudaAffinePlan plan_cuda_linear(const LinearShape& shape, const Layout& input);

// library(direction) is a product that knows x, w, y as planned, its scratch memory, aligned to
// kWorkspaceAlignment, and Write::accumulate where it adds.
std::unique_ptr<AffineKernel> make_cuda_affine(const CudaAffinePlan& plan,
                                               const std::function<AffineProduct(AffineDirection)>& library);

}  // namespace lockstep
