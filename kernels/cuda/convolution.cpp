// SPDX-License-Identifier: Apache-2.0
//
// Convolutions with cuDNN's products.
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

AffineProduct product_of(CudaLibraries& libraries, ConvolutionPlan plan) {
  auto shared = std::make_shared<ConvolutionPlan>(std::move(plan));
  AffineProduct product{.name = shared->tag(), .scratch_bytes = shared->workspace_bytes()};
  product.run = [&libraries, shared](Stream& stream, const AffineOperands& operands) {
    make_current(stream.device());
    shared->execute(libraries.cudnn(stream), operands);
  };
  return product;
}

}  // namespace

std::unique_ptr<AffineKernel> make_cuda_convolution(CudaLibraries& libraries, const ConvolutionShape& shape,
                                                    const Layout& input, KernelChoices& choices) {
  const CudaAffinePlan plan = plan_cuda_convolution(shape, input);
  ConvolutionShape physical = shape;
  physical.in_channels = plan.physical_inputs;
  physical.adds_input_gradient = plan.adds_input_gradient;
  return make_cuda_affine(plan, [&](AffineDirection direction) {
    const ConvolutionProblem problem{.shape = physical, .direction = direction, .dtype = input.dtype()};
    make_current(libraries.device());
    const ProductSource source{.find = [&](const std::string& tag) -> std::optional<AffineProduct> {
                                 auto found = libraries.convolution_plans().find(problem, tag);
                                 if (!found) return std::nullopt;
                                 return product_of(libraries, std::move(*found));
                               },
                               .all =
                                   [&] {
                                     std::vector<AffineProduct> products;
                                     for (ConvolutionPlan& made : libraries.convolution_plans().all(problem))
                                       products.push_back(product_of(libraries, std::move(made)));
                                     return products;
                                   }};
    return choose_product(choices, describe(problem), source, libraries, plan);
  });
}

}  // namespace lockstep
