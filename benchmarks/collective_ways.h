// SPDX-License-Identifier: Apache-2.0
//
// The implementations ("ways") of a collective that benchmarks compare: Lockstep's over MPI, in memory that
// the communicator allocated and in other memory, MPI's, Gloo's, and NCCL's through Lockstep's communicator;
// and plain TCP transfers as an upper bound. Each has send and receive memory, and runs a case to completion.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/collective_case.h"
#include "comm/world.h"
#include "core/tensor/buffer.h"

namespace lockstep {

// Send and receive memory, as large as the largest case.
struct WayMemory {
  Buffer send;
  Buffer recv;
};

class Way {
 public:
  Way(std::string_view name, std::shared_ptr<WayMemory> memory) : name_(name), memory_(std::move(memory)) {}
  virtual ~Way() = default;

  std::string_view name() const { return name_; }
  const WayMemory& memory() const { return *memory_; }
  // The reason why it does not support the case; empty if it does.
  virtual std::string lacks(const CollectiveCase&) const { return ""; }
  // Returns true if run() writes a result that can be checked.
  virtual bool leaves_result() const { return true; }
  // Collective; returns when this rank's part is done. send and recv are separate, or both in one block
  // (CollectiveCase::in_place_send_offset, and result_offset).
  virtual void run(const CollectiveCase& c, std::byte* send, std::byte* recv) = 0;
  // Offset of the result in the block of an in-place run.
  virtual std::size_t result_offset(const CollectiveCase& c, int rank) const {
    return c.in_place_recv_offset(rank);
  }
  // Returns true if `send` is inside the receive memory.
  bool in_place(const std::byte* send) const { return memory_->recv.contains(send, 1); }
  // Copy inputs from host memory to the way's memory, and results back.
  virtual void put(std::byte* to, const std::byte* from, std::size_t bytes);
  virtual void get(std::byte* to, const std::byte* from, std::size_t bytes) { put(to, from, bytes); }

 private:
  std::string_view name_;
  std::shared_ptr<WayMemory> memory_;
};

// Through a communicator, which must outlive it. all_reduce and broadcast work only in place, so the input is
// copied first if send and recv are separate; all_to_all works only out of place, so it is copied if they are
// not.
std::unique_ptr<Way> own_way(std::string_view name, Communicator& communicator,
                             std::shared_ptr<WayMemory> memory);

// Gloo over TCP on the node's loopback, as PyTorch's DistributedDataParallel uses it on CPUs. Collective.
// Null, with the reason, if Gloo was not found at build time, or if ranks are on several nodes.
std::unique_ptr<Way> gloo_way(World& world, std::shared_ptr<WayMemory> memory, std::string& why_not);

// Sends and receives the bytes of an all_reduce over plain TCP connections between all ranks, without the
// additions: an upper bound for a network. Collective. Null, with the reason, for one rank.
std::unique_ptr<Way> tcp_way(World& world, Communicator& host, std::shared_ptr<WayMemory> memory,
                             std::string& why_not);

std::vector<std::string> way_names();

// The available ways, with their communicators and memory.
class Ways {
 public:
  // Collective. Creates the wanted ways, or, if `wanted` is empty, all but tcp. An unavailable way is
  // reported on rank 0, or throws ConfigError on every rank if it was wanted by name.
  Ways(World& world, const std::vector<std::string>& wanted, std::size_t max_bytes);

  // The ways that support the case. The other ways are reported, or throw, as above.
  std::vector<Way*> for_case(const CollectiveCase& c) const;
  // An MPI communicator for messages of this object.
  Communicator& host() { return *host_; }

 private:
  std::unique_ptr<Way> make(World& world, const std::string& name, std::string& why_not);
  void leave_out(std::string_view name, const std::string& why) const;

  bool by_name_ = false;
  std::size_t max_bytes_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<Communicator> nccl_;
  std::shared_ptr<WayMemory> plain_;
  std::vector<std::unique_ptr<Way>> ways_;
};

}  // namespace lockstep
