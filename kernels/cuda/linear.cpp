// SPDX-License-Identifier: Apache-2.0
//
// Linear layers whose products are cuBLASLt's.
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

CudaProduct product_of(CudaLibraries& libraries, LinearPlan plan) {
  auto shared = std::make_shared<LinearPlan>(std::move(plan));
  CudaProduct product{.name = shared->tag(), .workspace_bytes = shared->workspace_bytes(), .adds = true};
  product.run = [&libraries, shared](Stream& stream, const AffineOperands& operands, Write write) {
    make_current(stream.device());
    shared->execute(
        libraries.cublas(),
        {.operands = operands, .write = write, .stream = static_cast<cudaStream_t>(stream.native())});
  };
  return product;
}

CudaProduct plan_product(CudaLibraries& libraries, const LinearProblem& problem, KernelChoices& choices,
                         const ProductSizes& sizes) {
  make_current(libraries.device());
  std::vector<CudaProduct> products;
  for (LinearPlan& plan : plan_linear(problem, libraries.cublas())) {
    products.push_back(product_of(libraries, std::move(plan)));
  }
  return choose_product(choices, describe(problem), std::move(products), sizes);
}

}  // namespace

std::unique_ptr<AffineKernel> make_cuda_linear(CudaLibraries& libraries, const LinearShape& shape,
                                               const Layout& input, KernelChoices& choices) {
  const CudaLinearPlan plan = plan_cuda_linear(shape, input);
  const ProductSizes sizes{.device = libraries.device(),
                           .type = input.dtype(),
                           .x_bytes = input.bytes(),
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
