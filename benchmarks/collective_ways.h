// SPDX-License-Identifier: Apache-2.0
//
// The ways in which ranks can run a collective: ours over MPI, in memory that the communicator allocated and
// in other memory, MPI's own, Gloo's, and NCCL's through our communicator; and what plain TCP connections
// carry, as a bound. Each has memory to send from and to receive in, and runs a case to its end.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/collective_case.h"
#include "comm/world.h"
#include "core/buffer.h"

namespace lockstep {

// As large as the largest case.
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
  // Why it has no such collective; empty where it has.
  virtual std::string lacks(const CollectiveCase&) const { return ""; }
  // Whether there is a result to look at.
  virtual bool leaves_result() const { return true; }
  // Collective; returns when this rank's part is done. send and recv are separate, or places in one block
  // (CollectiveCase::in_place_send_offset, and result_offset).
  virtual void run(const CollectiveCase& c, std::byte* send, std::byte* recv) = 0;
  // Where the result lies in the block of an in-place run.
  virtual std::size_t result_offset(const CollectiveCase& c, int rank) const {
    return c.in_place_recv_offset(rank);
  }
  // Whether these bytes to send lie in the memory that receives.
  bool in_place(const std::byte* send) const { return memory_->recv.contains(send, 1); }
  // Host memory to the way's and back, for inputs and results.
  virtual void put(std::byte* to, const std::byte* from, std::size_t bytes);
  virtual void get(std::byte* to, const std::byte* from, std::size_t bytes) { put(to, from, bytes); }

 private:
  std::string_view name_;
  std::shared_ptr<WayMemory> memory_;
};

// Through a communicator, which must outlive it. What works in place alone, all_reduce and broadcast, is
// preceded by a copy where send and recv are separate, and all_to_all, which does not, where they are not.
std::unique_ptr<Way> own_way(std::string_view name, Communicator& communicator,
                             std::shared_ptr<WayMemory> memory);

// Gloo's over TCP on this node's loopback, as PyTorch's DistributedDataParallel uses it on CPUs; collective.
// Null, with the reason, where it was not found when this was built, or where ranks are on several nodes.
std::unique_ptr<Way> gloo_way(World& world, std::shared_ptr<WayMemory> memory, std::string& why_not);

// What an all_reduce must send and receive, over plain TCP connections between all ranks and without adding
// anything: a bound for a network; collective. Runs only where it is wanted by name.
std::unique_ptr<Way> tcp_way(World& world, Communicator& host, std::shared_ptr<WayMemory> memory,
                             std::string& why_not);

std::vector<std::string> way_names();

// The ways there are, with what they need.
class Ways {
 public:
  // Collective. Those that are wanted, or all. One that is not there is a line on rank 0; a ConfigError on
  // every rank where it was wanted by name.
  Ways(World& world, const std::vector<std::string>& wanted, std::size_t max_bytes);

  // Those that have the collective. Of others as above.
  std::vector<Way*> for_case(const CollectiveCase& c) const;
  // Over MPI, for what ranks tell each other.
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
