// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operations of kernels/update.h. An update is one launch for a whole UpdateTable
// (LARS: three), not one per tensor.
#pragma once

#include "core/stream.h"
#include "kernels/update.h"

namespace lockstep {

void cuda_clip_gradients(Stream& stream, const GradientClip& arguments);
void cuda_update(Stream& stream, const Update& update, const UpdateRule& rule);
void cuda_restore_if_skipped(Stream& stream, const Restore& arguments);
void cuda_finish_step(Stream& stream, const LossScaleRule& rule, StepControl* control);
void cuda_average_values(Stream& stream, const AverageUpdate& arguments);
void cuda_swap_values(Stream& stream, const ValueSwap& arguments);

}  // namespace lockstep
