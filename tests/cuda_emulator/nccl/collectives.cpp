// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions: collectives, sends and receives, and groups.
#include <nccl.h>

#include "tests/cuda_emulator/nccl/errors.h"
#include "tests/cuda_emulator/nccl/submission.h"

using lockstep::emulator::Direction;
using lockstep::emulator::Kind;
using lockstep::emulator::submit;

ncclResult_t ncclAllReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({.kind = Kind::all_reduce, .type = type, .op = op, .count = count}, send, recv, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, std::size_t recv_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({.kind = Kind::reduce_scatter, .type = type, .op = op, .count = recv_count}, send, recv, comm,
                stream);
}

ncclResult_t ncclAllGather(const void* send, void* recv, std::size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({.kind = Kind::all_gather, .type = type, .count = send_count}, send, recv, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* recv, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({.kind = Kind::broadcast, .type = type, .root = root, .count = count}, send, recv, comm,
                stream);
}

ncclResult_t ncclReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({.kind = Kind::reduce, .type = type, .op = op, .root = root, .count = count}, send, recv,
                comm, stream);
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  auto* data = static_cast<std::byte*>(const_cast<void*>(send));
  return submit(Direction::out, {.peer = peer, .type = type, .count = count, .data = data}, comm, stream);
}

ncclResult_t ncclRecv(void* recv, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  auto* data = static_cast<std::byte*>(recv);
  return submit(Direction::in, {.peer = peer, .type = type, .count = count, .data = data}, comm, stream);
}

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t fault = lockstep::emulator::requested_fault("ncclGroupStart")) return fault;
  lockstep::emulator::begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (const ncclResult_t fault = lockstep::emulator::requested_fault("ncclGroupEnd")) return fault;
  return lockstep::emulator::end_group();
}
