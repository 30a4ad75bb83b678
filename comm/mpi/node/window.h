// SPDX-License-Identifier: Apache-2.0
//
// NodeWindow: memory in which every rank of a node owns a segment and sees all the others' (MPI-3 shared
// memory window). The destructor does not free it: freeing is collective, and a failing rank must not wait
// for its peers. Check the room in /dev/shm first (fits_shared_memory()): memory that MPI maps there without
// room ends the process when it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

namespace lockstep {

class NodeWindow {
 public:
  // Collective over the ranks of the node; all pass the same size. Zeroed, aligned to kAlignment.
  NodeWindow(MPI_Comm node, std::size_t bytes);
  NodeWindow(const NodeWindow&) = delete;
  NodeWindow& operator=(const NodeWindow&) = delete;

  // Collective. Frees the memory of all ranks.
  void free();

  // Every local rank's segment, as addresses in this process.
  std::span<std::byte* const> segments() const { return segments_; }
  std::byte* own() const { return own_; }
  bool contains(const void* data, std::size_t bytes) const;
  MPI_Comm communicator() const { return node_; }
  // A number that the ranks of a communicator give it, the same on all of them.
  std::uint64_t id() const { return id_; }
  void set_id(std::uint64_t id) { id_ = id; }
  // Its number among this process's windows, in the order of construction.
  std::uint64_t number() const { return number_; }

 private:
  MPI_Comm node_;
  std::uint64_t number_;
  std::uint64_t id_ = 0;
  MPI_Win window_ = MPI_WIN_NULL;
  std::size_t bytes_;
  std::byte* own_ = nullptr;
  std::vector<std::byte*> segments_;
};

// True if segments of `bytes` for each of a node's ranks fit into free_bytes, including what MPI adds and a
// little for others.
bool fits_shared_memory(std::uint64_t free_bytes, int ranks, std::size_t bytes);

}  // namespace lockstep
