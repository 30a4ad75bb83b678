// SPDX-License-Identifier: Apache-2.0
//
// The communicators of this process by their ncclComm_t.
#pragma once

#include <memory>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/communicator.h"
#include "tests/cuda_emulator/nccl/hidden.h"

namespace lockstep::emulator {

using CommunicatorPointer = Hidden<std::shared_ptr<EmulatedCommunicator>>;

ncclComm_t add_handle(std::shared_ptr<EmulatedCommunicator> communicator);
// Returns null for a destroyed, aborted or invalid handle.
CommunicatorPointer find_handle(ncclComm_t handle);
void remove_handle(ncclComm_t handle);
// Reports that find_handle() found no communicator.
ncclResult_t refuse_handle(const char* function, ncclComm_t handle);
// Returns whether a communicator has registered some of these bytes.
bool is_registered_somewhere(const void* data, std::size_t bytes);

}  // namespace lockstep::emulator
