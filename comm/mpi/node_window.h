// SPDX-License-Identifier: Apache-2.0
//
// NodeWindow: memory in which every rank of a node owns a segment and sees all the others' (MPI-3 shared
// memory window). Not freed by the destructor: freeing is collective, and a rank in trouble must not wait for
// its peers. Where there is room for it in /dev/shm is asked before: what MPI maps there without room ends
// the process when it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

namespace lockstep {

class NodeWindow {
 public:
  // Collective over the ranks of the node; all give the same size. Zeroed, aligned to kAlignment.
  NodeWindow(MPI_Comm node, std::size_t bytes);
  NodeWindow(const NodeWindow&) = delete;
  NodeWindow& operator=(const NodeWindow&) = delete;

  // Collective. The memory is gone.
  void free();

  // Every local rank's segment, as addresses in this process.
  std::span<std::byte* const> segments() const { return segments_; }
  std::byte* own() const { return own_; }
  bool contains(const void* data, std::size_t bytes) const;
  MPI_Comm communicator() const { return node_; }
  // What the ranks of a communicator know it by.
  std::uint64_t id() const { return id_; }
  void set_id(std::uint64_t id) { id_ = id; }
  // Windows of this process, in the order in which they were made.
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

// Whether windows of so many bytes for each of a node's ranks fit where this much is free: what MPI adds, and
// a little for others, included.
bool fits_shared_memory(std::uint64_t free_bytes, int ranks, std::size_t bytes);

}  // namespace lockstep
