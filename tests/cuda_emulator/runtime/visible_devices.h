// SPDX-License-Identifier: Apache-2.0
//
// CUDA_VISIBLE_DEVICES: the devices of the machine that a process sees. A device's place is its index on the
// machine, independent of the visible devices.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

namespace lockstep::emulator {

cudaUUID_t uuid_of(int place);
// The places of the list's devices, in its order. The list contains indices, or prefixes of UUIDs such as
// "GPU-656d756c..", which must be unique; its first item determines the kind. The first invalid item ends the
// list. A device that occurs twice makes it empty. Null selects all devices.
std::vector<int> visible_places(const char* list, int devices);

}  // namespace lockstep::emulator
