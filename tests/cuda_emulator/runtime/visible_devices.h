// SPDX-License-Identifier: Apache-2.0
//
// CUDA_VISIBLE_DEVICES: which of the machine's devices a process sees. A device's place is its number on the
// machine, whatever the process sees.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

namespace lockstep::emulator {

cudaUUID_t uuid_of(int place);
// The places that the list names, in its order. The list holds indices, or beginnings of UUIDs as
// "GPU-656d756c..", which must be one device's alone; its first item decides which. The first item that is
// invalid ends the list. A device that is named twice makes it empty. Null: all devices.
std::vector<int> visible_places(const char* list, int devices);

}  // namespace lockstep::emulator
