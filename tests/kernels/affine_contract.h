// SPDX-License-Identifier: Apache-2.0
//
// What every planned affine kernel must do, whatever its shape and layouts.
#pragma once

#include "tests/kernels/affine_reference.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {

// Checks all three directions of a kernel against the reference and against finite differences of it.
// as_convolution has the kernel's sizes; plain memory is the same under both. tolerance is of the norm of the
// difference over the norm; tensors of halves start from what their type can hold, and each result must be
// what computing in fp32 and rounding once gives.
void expect_affine_contract(AffineKernel& kernel, const ConvolutionShape& as_convolution,
                            double tolerance = 1e-5);

}  // namespace lockstep
