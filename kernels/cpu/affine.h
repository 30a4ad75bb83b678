// SPDX-License-Identifier: Apache-2.0
//
// What convolution and linear share on oneDNN: a kernel of three steps (forward, gradient of the input,
// gradient of the weights), and the choice of each step among its candidates.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/affine.h"
#include "kernels/cpu/affine_step.h"
#include "kernels/kernel_choices.h"

namespace lockstep {

struct AffineSteps {
  Layout input;
  Layout output;
  Layout weights;
  AffineStep forward;
  std::optional<AffineStep> backward_data;
  AffineStep backward_weights;
};

std::unique_ptr<AffineKernel> make_onednn_affine(AffineSteps steps);

// The index of the step that the choices prefer; times those that have no choice yet on memory of its own.
// key says what is computed; the number of threads is added to it.
std::size_t choose_step(KernelChoices& choices, const std::string& key, std::vector<AffineStep>& steps);

// Attributes with the activation applied to the result, and scratch memory from the caller.
dnnl::primitive_attr attributes_with(Activation activation);

}  // namespace lockstep
