// SPDX-License-Identifier: Apache-2.0
//
// World: who this process is among the processes mpirun started. Joining it starts MPI; leaving it (the
// destructor) ends MPI. One per process, made at the top of main and outliving everything that communicates.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "core/device.h"

namespace lockstep {

struct WorldOptions {
  // Ranks that count as one node; 0: those that share memory, as MPI says. For tests of several nodes on one.
  int ranks_per_node = 0;
};

class World {
 public:
  // Collective over all processes. Sets the process's rank for log and errors.
  static World join(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this node
  int local_size() const;
  int node() const;  // numbered by their lowest rank
  int nodes() const;
  const std::string& host() const;

  // A new communicator over all ranks (collective). CPU memory: MPI; device memory: NCCL, where built.
  std::unique_ptr<Communicator> communicator(Device device = {});

  // Ends the whole job at once: every rank, with this exit code. The last resort of a rank in trouble: others
  // may be waiting for it.
  [[noreturn]] void abort(int exit_code);

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The rank mpirun gave this process before MPI is started (from its environment); 0 without mpirun.
int launched_rank();

// The MPI library's name and version: "Open MPI v4.1.4". Needs no World.
std::string mpi_version();

}  // namespace lockstep
