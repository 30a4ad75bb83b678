// SPDX-License-Identifier: Apache-2.0
//
// What the environment asks of a communicator: how long its collectives take at least, so that overlap can be
// seen, and an error that is found only after the call. Read when a communicator is made.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

// The links of a ring of ranks. LOCKSTEP_EMULATED_NCCL_LATENCY=20us, of one step, and
// LOCKSTEP_EMULATED_NCCL_BANDWIDTH=1GB/s (or MB/s, KB/s, Gbit/s, Mbit/s), of one link in one direction.
struct Link {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: no limit

  static Link from_environment();
  // Of a collective from when the last rank has come, as a ring runs it.
  std::chrono::nanoseconds least_time(const Call& call, int ranks) const;
};

// LOCKSTEP_EMULATED_NCCL_ASYNC=7:6 or 1/7:6: after its seventh collective, the communicator (of rank 1) has
// the asynchronous error 6, ncclRemoteError.
struct AsyncFault {
  std::uint64_t after = 0;
  ncclResult_t status = ncclSuccess;

  static std::optional<AsyncFault> from_environment(int rank);
};

}  // namespace lockstep::emulator
