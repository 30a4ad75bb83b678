// SPDX-License-Identifier: Apache-2.0
//
// The communicators that an ncclComm_t of this process can stand for.
#pragma once

#include <memory>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/communicator.h"
#include "tests/cuda_emulator/nccl/hidden.h"

namespace lockstep::emulator {

using CommunicatorPointer = Hidden<std::shared_ptr<EmulatedCommunicator>>;

ncclComm_t add_handle(std::shared_ptr<EmulatedCommunicator> communicator);
// Null for one that was destroyed or aborted, or never was.
CommunicatorPointer find_handle(ncclComm_t handle);
void remove_handle(ncclComm_t handle);
// Says so, where find_handle() finds none.
ncclResult_t refuse_handle(const char* function, ncclComm_t handle);
// Whether some communicator has registered some of these bytes.
bool is_registered_somewhere(const void* data, std::size_t bytes);

}  // namespace lockstep::emulator
