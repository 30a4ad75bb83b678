// SPDX-License-Identifier: Apache-2.0
//
// The devices that the emulated cuDNN plans for: emulated ones, and real ones that are only described.
#pragma once

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

namespace lockstep::emulator::cudnn {

// An emulated device. Throws Refusal when there is none of this number.
Target target_of_device(int device);
// By a descriptor of CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR: a number, a handle, or properties as JSON. Throws
// Refusal that names what a description lacks.
Target target_of_description(const Descriptor& descriptor);

}  // namespace lockstep::emulator::cudnn
