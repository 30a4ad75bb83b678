// SPDX-License-Identifier: Apache-2.0
//
// How a collective gets from its call to its stream: what can be known to be wrong at once is refused; the
// rest is work of the stream, or a node of the graph that the stream is captured into. In a group calls wait
// for its end.
#pragma once

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

// What ncclAllReduce and its likes do.
ncclResult_t submit(const Call& call, const void* send, void* recv, ncclComm_t handle, cudaStream_t stream);

enum class Direction { out, in };
// What ncclSend and ncclRecv do: begins with the others of its group.
ncclResult_t submit(Direction direction, const Transfer& transfer, ncclComm_t handle, cudaStream_t stream);

// Of the calling thread. What a group refuses, its end refuses, too, and does nothing.
void begin_group();
ncclResult_t end_group();
bool in_group();

}  // namespace lockstep::emulator
