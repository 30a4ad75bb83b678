// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of dropout, with the masks of DropoutArguments. Tensors are plain.
#pragma once

#include "core/stream.h"
#include "kernels/dropout.h"

namespace lockstep {

void cuda_dropout(Stream& stream, const DropoutArguments& arguments);

}  // namespace lockstep
