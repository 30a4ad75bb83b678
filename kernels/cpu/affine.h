// SPDX-License-Identifier: Apache-2.0
//
// What convolution and linear share on oneDNN: a kernel of three steps (forward, gradient of the input,
// gradient of the weights), and the choice of each step among its candidates.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
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

// One way to compute a direction, which oneDNN may not have: then make() throws dnnl::error. The first of
// several must be there, and contend.
struct StepCandidate {
  std::string name;
  std::function<AffineStep()> make;
  bool contends = true;  // false: cannot be faster than the others, there for those who name it
};
// The step that the choices prefer. Where they have none yet, and choose by time, all candidates are made and
// compared on memory of their own; else only the one that is used is made. key says what is computed.
AffineStep choose_step(KernelChoices& choices, const std::string& key,
                       std::span<const StepCandidate> candidates);

// Attributes with the activation applied to the result, and scratch memory from the caller.
dnnl::primitive_attr attributes_with(Activation activation);

}  // namespace lockstep
