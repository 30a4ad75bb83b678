// SPDX-License-Identifier: Apache-2.0
//
// The devices that the emulated cuDNN plans for: emulated devices, and real devices given by a description.
#pragma once

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

namespace lockstep::emulator::cudnn {

// An emulated device. Throws Refusal if there is no device with this number.
Target target_of_device(int device);
// The device of a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, which holds a number, a handle, or properties as JSON.
// Throws a Refusal that names a property missing from the JSON.
Target target_of_description(const Descriptor& descriptor);

}  // namespace lockstep::emulator::cudnn
