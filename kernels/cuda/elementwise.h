// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operations of kernels/elementwise.h.
#pragma once

#include "core/stream.h"
#include "kernels/elementwise.h"

namespace lockstep {

void cuda_activation_forward(Stream& stream, const ActivationForward& arguments);
void cuda_activation_backward(Stream& stream, const ActivationBackward& arguments);
void cuda_add(Stream& stream, const Addition& arguments);
void cuda_scale(Stream& stream, const Scaling& arguments);
void cuda_cast(Stream& stream, const Cast& arguments);
void cuda_all_finite(Stream& stream, const FiniteCheck& arguments);
void cuda_largest_magnitude(Stream& stream, const LargestMagnitude& arguments);
void cuda_half_scale(Stream& stream, const HalfScale& arguments);
void cuda_sum_squares(Stream& stream, const SquareSum& arguments);

}  // namespace lockstep
