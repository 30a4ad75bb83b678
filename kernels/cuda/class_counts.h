// SPDX-License-Identifier: Apache-2.0
//
// ClassCounts on the device, for logits in fp32 or a half type.
#pragma once

#include "core/stream.h"
#include "kernels/class_counts.h"

namespace lockstep {

void cuda_count_classes(Stream& stream, const ClassCounts& arguments);

}  // namespace lockstep
