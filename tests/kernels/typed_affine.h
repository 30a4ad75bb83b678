// SPDX-License-Identifier: Apache-2.0
//
// What every planned affine kernel must do, in any type and on any device.
#pragma once

#include "tests/kernels/typed_tensor.h"

namespace lockstep {

// Checks all three directions against the reference on operands rounded to the kernel's type. as_convolution
// has the kernel's sizes, bias and activation. tolerance is of the norm of the difference over the norm.
void expect_typed_affine(const Lab& lab, AffineKernel& kernel, const ConvolutionShape& as_convolution,
                         double tolerance);

}  // namespace lockstep
