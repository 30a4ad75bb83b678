// SPDX-License-Identifier: Apache-2.0
//
// The contract of every planned affine kernel, in any type and on any device.
#pragma once

#include "tests/kernels/typed_tensor.h"

namespace lockstep {

// Checks all three directions against the reference on operands rounded to the kernel's type. as_convolution
// has the kernel's sizes, bias and activation. tolerance bounds the norm of the difference over the norm.
void expect_typed_affine(const Lab& lab, AffineKernel& kernel, const ConvolutionShape& as_convolution,
                         double tolerance);

}  // namespace lockstep
