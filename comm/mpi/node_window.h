// SPDX-License-Identifier: Apache-2.0
//
// NodeWindow: memory in which every rank of a node owns a segment and sees all the others' (MPI-3 shared
// memory window). Not freed by the destructor: freeing is collective, and a rank in trouble must not wait for
// its peers.
#pragma once

#include <cstddef>
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

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::size_t bytes_;
  std::byte* own_ = nullptr;
  std::vector<std::byte*> segments_;
};

}  // namespace lockstep
