// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operation of kernels/image_gather.h.
#pragma once

#include "core/stream.h"
#include "kernels/image_gather.h"

namespace lockstep {

void cuda_gather_images(Stream& stream, const ImageGather& arguments);

}  // namespace lockstep
