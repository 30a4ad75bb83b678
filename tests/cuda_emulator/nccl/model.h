// SPDX-License-Identifier: Apache-2.0
//
// Settings of a communicator in the environment: minimum times of its collectives, so that overlap is
// visible, and an asynchronous error. They are read when a communicator is created.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <nccl.h>

#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

// A link from one rank of a ring to the next, in one direction.
struct Link {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: no limit
};

// The ring in which NCCL orders the ranks: the ranks of a node are consecutive, so that one link connects
// each node with the next. LOCKSTEP_EMULATED_NCCL_LATENCY=20us and LOCKSTEP_EMULATED_NCCL_BANDWIDTH=1GB/s (or
// MB/s, KB/s, Gbit/s, Mbit/s) apply to every link; LOCKSTEP_EMULATED_NCCL_NODE_LATENCY and _NODE_BANDWIDTH
// override them between nodes.
struct Ring {
  int ranks = 1;
  int nodes = 1;
  Link within{};   // within a node
  Link between{};  // between nodes

  static Ring from_environment(int ranks, int nodes);
  // The time of a collective after the last rank has entered it. Like NCCL's own estimate: each piece crosses
  // every link on its way, so latencies add up, and the slowest link of the ring determines the rate of all
  // bytes.
  std::chrono::nanoseconds least_time(const Call& call) const;
  // The time of sends and receives, which go directly to their ranks. bytes: the most bytes that a rank sends
  // or receives.
  std::chrono::nanoseconds least_time_of_transfers(double bytes) const;
};

// LOCKSTEP_EMULATED_NCCL_ASYNC=7:6 or 1/7:6: after its seventh collective, the communicator (of rank 1 only)
// has the asynchronous error 6, ncclRemoteError.
struct AsyncFault {
  std::uint64_t after = 0;
  ncclResult_t status = ncclSuccess;

  static std::optional<AsyncFault> from_environment(int rank);
};

}  // namespace lockstep::emulator
