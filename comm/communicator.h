// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a group of ranks and the collectives they run, in the order they were enqueued. Every
// operation is enqueued on stream() and returns at once; completion is stream order (record an Event and wait
// for it). All ranks must enqueue the same operations in the same order.
//
// Results are the same bits on every rank. On the CPU a sum is taken element by element in the order of ranks
// (over several nodes: within each node, then over the nodes), whatever the size, alignment or kind of
// memory, so splitting one all_reduce into several changes nothing. Between devices the order is NCCL's, and
// depends on size and topology.
//
// Pointers are to memory of stream()'s device: host memory on the CPU, device memory on CUDA. What ranks
// agree on in host memory goes through host().
//
// On the CPU stream() is one worker thread, and that thread owns MPI from World::join to the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/stream.h"

namespace lockstep {

enum class ReduceOp { sum, max };

// Counted where bytes leave a rank for another: payload, not protocol.
struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t operations = 0;

  Traffic& operator+=(const Traffic& more) {
    sent_bytes += more.sent_bytes;
    operations += more.operations;
    return *this;
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view name() const = 0;  // "self", "threads", "mpi", "nccl"
  virtual Stream& stream() = 0;
  // The same ranks, for a few bytes in host memory: this one on the CPU, the one over MPI beside a device's.
  virtual Communicator& host() { return *this; }

  // Collective. Zeroed memory on which in-place collectives are fastest (shared window, registered memory).
  // Must be freed on every rank, before the communicator.
  virtual Buffer allocate(std::size_t bytes) = 0;

  // In place over `count` elements; f32, f16, bf16, i32. On the CPU 16-bit floats are added in fp32 and
  // rounded once; NCCL may round each partial sum.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) = 0;
  // send holds size() * count elements; recv takes this rank's share of the reduction, `count` elements, and
  // may be that share's place in send.
  virtual void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) = 0;
  // send holds `count` elements; recv takes size() * count, in rank order; send may be its own place in recv.
  // Any type.
  virtual void all_gather(const void* send, void* recv, std::size_t count, DType dtype) = 0;
  // From root's `data` to everybody's. Any type.
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root) = 0;
  // No rank's later work starts before all ranks' earlier work is done.
  virtual void barrier() = 0;

  // This rank gives up on its peers: a collective that waits for them ends with an error, and so does every
  // later one. For whoever must free what collectives use while an exception unwinds the stack. Any thread.
  virtual void abandon() noexcept = 0;

  // What has been sent so far; call when the stream is idle. Of collectives that were recorded (Stream) it
  // knows what replayed() was told.
  virtual Traffic traffic() const = 0;
  // What a replay will send of all that was recorded since the last call.
  virtual Traffic take_recorded() { return {}; }
  virtual void replayed(const Traffic&) {}
  // Held to pass messages through, beside what allocate() gave.
  virtual std::size_t memory_bytes() const { return 0; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

// Collective over host memory. The lowest rank that calls it with true, or -1 for none: the rank that speaks
// of what several may have found.
int first_rank_where(Communicator& host, bool found);

// A world of one: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator(Device device = {});

// Ranks as threads of one process, for tests: hub once, then one communicator for each rank, each used by its
// own thread.
class ThreadHub;
std::shared_ptr<ThreadHub> make_thread_hub(int size);
std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadHub> hub, int rank);

}  // namespace lockstep
