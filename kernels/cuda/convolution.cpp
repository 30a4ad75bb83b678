// SPDX-License-Identifier: Apache-2.0
//
// Convolutions whose products are cuDNN's.
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

CudaProduct product_of(CudaLibraries& libraries, ConvolutionPlan plan) {
  auto shared = std::make_shared<ConvolutionPlan>(std::move(plan));
  CudaProduct product{.name = shared->tag(), .workspace_bytes = shared->workspace_bytes()};
  product.run = [&libraries, shared](Stream& stream, const AffineOperands& operands, Write) {
    make_current(stream.device());
    shared->execute(libraries.cudnn(stream), operands);
  };
  return product;
}

CudaProduct plan_product(CudaLibraries& libraries, const ConvolutionProblem& problem, KernelChoices& choices,
                         const ProductSizes& sizes) {
  make_current(libraries.device());
  std::vector<CudaProduct> products;
  for (ConvolutionPlan& plan : plan_convolution(problem, libraries.target())) {
    products.push_back(product_of(libraries, std::move(plan)));
  }
  return choose_product(choices, describe(problem), std::move(products), sizes);
}

}  // namespace

std::unique_ptr<AffineKernel> make_cuda_convolution(CudaLibraries& libraries, const ConvolutionShape& shape,
                                                    const Layout& input, KernelChoices& choices) {
  const CudaConvolutionPlan plan = plan_cuda_convolution(shape, input);
  const ProductSizes sizes{.device = libraries.device(),
                           .type = input.dtype(),
                           .x_bytes = plan.affine.input.wanted().bytes(),
                           .w_bytes = plan.affine.weights.bytes(),
                           .y_bytes = plan.affine.output.bytes()};
  const auto planned = [&](AffineDirection direction) {
    return plan_product(libraries, {.shape = plan.physical, .direction = direction, .dtype = input.dtype()},
                        choices, sizes);
  };
  CudaProducts products{.forward = planned(AffineDirection::forward)};
  if (shape.input_gradient) products.backward_data = planned(AffineDirection::backward_data);
  products.backward_weights = planned(AffineDirection::backward_weights);
  return make_cuda_affine(plan.affine, std::move(products));
}

}  // namespace lockstep
