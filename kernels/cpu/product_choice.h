// SPDX-License-Identifier: Apache-2.0
//
// Chooses the product that computes a direction of a convolution or linear layer.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kernels/cpu/affine_product.h"
#include "kernels/kernel_choices.h"

namespace lockstep {

// A candidate product. make() throws dnnl::error if oneDNN does not have it. The first candidate must exist
// and contend.
struct ProductCandidate {
  std::string name;
  std::function<CpuProduct()> make;
  bool contends = true;  // false: never the fastest, so not timed; usable by name
};
// The product that `choices` selects. If there is no choice yet and choosing is by time, all contending
// candidates are made and timed on separate memory, except reference kernels other than the first candidate;
// otherwise only the selected one is made. key describes the computation.
CpuProduct choose_product(KernelChoices& choices, const std::string& key,
                          std::span<const ProductCandidate> candidates);

}  // namespace lockstep
