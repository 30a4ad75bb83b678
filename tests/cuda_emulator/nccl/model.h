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

// From one rank of a ring to the next, in one direction.
struct Link {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: no limit
};

// The ring on which NCCL puts the ranks: those of a node follow one another, so that one link leaves each
// node for the next. LOCKSTEP_EMULATED_NCCL_LATENCY=20us and LOCKSTEP_EMULATED_NCCL_BANDWIDTH=1GB/s (or MB/s,
// KB/s, Gbit/s, Mbit/s) describe every link; LOCKSTEP_EMULATED_NCCL_NODE_LATENCY and _NODE_BANDWIDTH those
// between nodes, where they are others.
struct Ring {
  int ranks = 1;
  int nodes = 1;
  Link within{};   // a node
  Link between{};  // nodes

  static Ring from_environment(int ranks, int nodes);
  // Of a collective from when the last rank has come. As NCCL's own estimate has it, each piece crosses every
  // link on its way, so latencies add up, and the slowest link of the ring sets the pace of all bytes.
  std::chrono::nanoseconds least_time(const Call& call) const;
  // Of sends and receives, which go straight to their ranks: of the rank that sends, or takes, the most
  // bytes.
  std::chrono::nanoseconds least_time_of_transfers(double bytes) const;
};

// LOCKSTEP_EMULATED_NCCL_ASYNC=7:6 or 1/7:6: after its seventh collective, the communicator (of rank 1) has
// the asynchronous error 6, ncclRemoteError.
struct AsyncFault {
  std::uint64_t after = 0;
  ncclResult_t status = ncclSuccess;

  static std::optional<AsyncFault> from_environment(int rank);
};

}  // namespace lockstep::emulator
