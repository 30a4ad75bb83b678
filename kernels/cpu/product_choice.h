// SPDX-License-Identifier: Apache-2.0
//
// The choice of the product that computes a direction of a convolution or linear layer, among its candidates.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kernels/cpu/affine_product.h"
#include "kernels/kernel_choices.h"

namespace lockstep {

// A product that oneDNN may not have: then make() throws dnnl::error. The first of several must be there, and
// contend.
struct ProductCandidate {
  std::string name;
  std::function<CpuProduct()> make;
  bool contends = true;  // false: cannot be faster than the others, there for those who name it
};
// The product that the choices prefer. Where they have none yet, and choose by time, all candidates are made
// and compared on memory of their own; else only the one that is used is made. key says what is computed.
CpuProduct choose_product(KernelChoices& choices, const std::string& key,
                          std::span<const ProductCandidate> candidates);

}  // namespace lockstep
