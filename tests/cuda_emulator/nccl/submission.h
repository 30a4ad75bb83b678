// SPDX-License-Identifier: Apache-2.0
//
// Submission of collectives: invalid calls are refused at once. Valid ones become work of the stream, or a
// node of the graph if the stream is captured. Calls in a group are submitted at its end.
#pragma once

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

// Implements the collectives, such as ncclAllReduce.
ncclResult_t submit(const Call& call, const void* send, void* recv, ncclComm_t handle, cudaStream_t stream);

enum class Direction { out, in };
// Implements ncclSend and ncclRecv. A transfer begins together with the others of its group.
ncclResult_t submit(Direction direction, const Transfer& transfer, ncclComm_t handle, cudaStream_t stream);

// The group of the calling thread. If a call of the group was refused, end_group() refuses the whole group.
void begin_group();
ncclResult_t end_group();
bool in_group();

}  // namespace lockstep::emulator
