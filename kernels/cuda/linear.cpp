// SPDX-License-Identifier: Apache-2.0
//
// Linear layers with cuBLASLt's products.
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

AffineProduct product_of(CudaLibraries& libraries, LinearPlan plan) {
  auto shared = std::make_shared<LinearPlan>(std::move(plan));
  AffineProduct product{.name = shared->tag(), .scratch_bytes = shared->workspace_bytes(), .adds = true};
  product.run = [&libraries, shared](Stream& stream, const AffineOperands& operands) {
    make_current(stream.device());
    shared->execute(libraries.cublas(), static_cast<cudaStream_t>(stream.native()), operands);
  };
  return product;
}

}  // namespace

std::unique_ptr<AffineKernel> make_cuda_linear(CudaLibraries& libraries, const LinearShape& shape,
                                               const Layout& input, KernelChoices& choices) {
  const CudaAffinePlan plan = plan_cuda_linear(shape, input);
  LinearShape physical = shape;
  physical.in_features = plan.physical_inputs;
  return make_cuda_affine(plan, [&](AffineDirection direction) {
    const LinearProblem problem{.shape = physical, .direction = direction, .dtype = input.dtype()};
    make_current(libraries.device());
    const auto all = [&] {
      std::vector<AffineProduct> products;
      for (LinearPlan& made : plan_linear(problem, libraries.cublas()))
        products.push_back(product_of(libraries, std::move(made)));
      return products;
    };
    return choose_product(choices, describe(problem), {.all = all}, libraries, plan);
  });
}

}  // namespace lockstep
