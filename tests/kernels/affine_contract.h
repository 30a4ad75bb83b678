// SPDX-License-Identifier: Apache-2.0
//
// The contract of every planned affine kernel, for any shape and layout.
#pragma once

#include "tests/kernels/affine_reference.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {

// Checks all three directions of a kernel against the reference and against slopes of the reference.
// as_convolution has the kernel's sizes; plain memory is the same under both. tolerance bounds the norm of
// the difference over the norm. 16-bit tensors start from representable values, and each result must equal
// the fp32 result rounded once.
void expect_affine_contract(AffineKernel& kernel, const ConvolutionShape& as_convolution,
                            double tolerance = 1e-5);

}  // namespace lockstep
