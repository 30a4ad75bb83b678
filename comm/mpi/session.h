// SPDX-License-Identifier: Apache-2.0
//
// MpiSession: what World and its communicators share: where this rank stands, and whether MPI may still be
// asked for anything that needs the peers. Includes MPI, so only comm's sources include it.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/world.h"

namespace lockstep {

namespace detail {
// Throws Error naming the rank, the call and MPI's own words, unless code is MPI_SUCCESS.
void check_mpi(int code, const char* call, const char* file, int line);
}  // namespace detail

#define MPI_CHECK(call) ::lockstep::detail::check_mpi((call), #call, __FILE__, __LINE__)

struct MpiSession {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  std::vector<int> node_of;  // by rank
  int smallest_node = 1;     // ranks on it
  int largest_node = 1;
  bool multithreaded = false;  // MPI_THREAD_MULTIPLE: several communicators at a time
  std::string host;

  std::atomic<int> communicators{0};
  // This rank cannot meet the others any more: collective clean-up, MPI_Finalize included, would hang.
  std::atomic<bool> failing{false};

  bool usable() const;
};

// Where this rank, and every other, stands; leaders[r] is the lowest rank of rank r's node. Session knows its
// rank and size.
void place_ranks(MpiSession& session, std::span<const int> leaders);

// Starts MPI; collective over all processes.
std::shared_ptr<MpiSession> start_mpi(const WorldOptions& options);
// Ends MPI, unless the session is failing.
void stop_mpi(MpiSession& session) noexcept;
// Ends every process of the job, on the spot. Any thread.
[[noreturn]] void abort_mpi(MpiSession& session, int exit_code) noexcept;

// Collective.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session);

}  // namespace lockstep
