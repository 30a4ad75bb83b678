// SPDX-License-Identifier: Apache-2.0
//
// HostCommunicator: the Communicator of every CPU backend. It owns the worker thread that runs collectives. A
// backend supplies a HostTransport: blocking collectives, called by the worker or, in its place, by a caller
// that waits, but never by two threads at once. Operations do not allocate.
#pragma once

#include <atomic>
#include <memory>

#include "comm/communicator.h"

namespace lockstep {

class HostTransport {
 public:
  virtual ~HostTransport() = default;

  virtual std::string_view name() const = 0;
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<JobState>& job() const { return place_.job; }

  // Collective. Zeroed memory that is fastest for this transport, or null if plain memory is as good. The
  // last owner frees it on any thread, without waiting for other ranks. It may outlive the transport.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  // Collective. See Communicator::shared_places.
  virtual std::vector<std::byte*> shared_places(void* own) = 0;
  // Collective. See Communicator::split.
  virtual std::unique_ptr<HostTransport> split(int colour, int key) = 0;

  // Blocks until this rank's part is done. Returns the time (now_ns()) when all ranks had arrived, or 0 if
  // unknown. Throws GaveUp if the job is abandoned. count is 0 only for a barrier.
  std::int64_t run(const Collective& collective);
  virtual std::uint64_t sent_bytes() const = 0;
  // The node of each rank; empty: all are on one node.
  virtual std::span<const int> node_of_rank() const { return {}; }
  virtual std::size_t memory_bytes() const { return 0; }

 protected:
  HostTransport(int rank, int size, std::shared_ptr<JobState> job)
      : rank_(rank), size_(size), place_{.job = std::move(job)} {}

  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) = 0;
  virtual void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) = 0;
  virtual void all_gather(const void* send, void* recv, std::size_t count, DType dtype) = 0;
  virtual void all_to_all(const void* send, void* recv, std::size_t count, DType dtype) = 0;
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root) = 0;
  virtual void barrier() = 0;

  // Reports that all ranks had arrived at this time (now_ns()). Only the first report counts; 0 is ignored.
  void met(std::int64_t at_ns);
  const WaitPlace& place() const { return place_; }

 private:
  int rank_;
  int size_;
  WaitPlace place_;
  std::int64_t met_ns_ = 0;
};

class HostCommunicator final : public Communicator {
 public:
  explicit HostCommunicator(std::unique_ptr<HostTransport> transport);
  ~HostCommunicator() override;

  std::string_view name() const override { return transport_->name(); }
  Stream& stream() override { return stream_; }
  Buffer allocate(std::size_t bytes) override;
  std::vector<std::byte*> shared_places(void* own) override;
  std::unique_ptr<Communicator> split(int colour, int key) override;
  std::size_t memory_bytes() const override { return transport_->memory_bytes(); }

 private:
  void run(const Collective& collective) override;
  void run_to_its_end(const Collective& collective) override;
  // Runs on the stream.
  void perform(const Collective& collective);

  std::unique_ptr<HostTransport> transport_;
  std::atomic<std::int64_t> under_way_{0};  // collectives enqueued but not finished
  Stream stream_;                           // last: its worker uses the members above
};

}  // namespace lockstep
