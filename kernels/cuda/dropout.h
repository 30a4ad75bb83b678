// SPDX-License-Identifier: Apache-2.0
//
// Dropout of plain features on the device, with the masks of DropoutArguments.
#pragma once

#include "core/stream.h"
#include "kernels/dropout.h"

namespace lockstep {

void cuda_dropout(Stream& stream, const DropoutArguments& arguments);

}  // namespace lockstep
