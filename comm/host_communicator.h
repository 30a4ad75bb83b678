// SPDX-License-Identifier: Apache-2.0
//
// HostCommunicator: the Communicator of every CPU backend. It owns the worker thread, checks each call and
// runs it there; what a backend adds is a HostTransport: the collectives themselves, blocking, called by the
// worker only. Nothing is allocated for an operation.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace lockstep {

class HostTransport {
 public:
  virtual ~HostTransport() = default;

  virtual std::string_view name() const = 0;

  // Collective. Zeroed memory this transport is fastest on, or null where plain memory is as good.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* data) = 0;

  // As in Communicator, but done when they return. count is never 0.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) = 0;
  virtual void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) = 0;
  virtual void all_gather(const void* send, void* recv, std::size_t count, DType dtype) = 0;
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root) = 0;
  virtual void barrier() = 0;
  virtual std::uint64_t sent_bytes() const = 0;
  virtual std::size_t memory_bytes() const { return 0; }

  // This rank gives up: a collective it is blocked in throws instead of waiting for its peers for ever, and
  // nothing collective is done from now on. Any thread.
  virtual void fail() noexcept = 0;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(int rank, int size, std::unique_ptr<HostTransport> transport);
  // While an exception unwinds the stack this gives up on the peers instead of waiting for them.
  ~HostCommunicator() override;

  std::string_view name() const override { return transport_->name(); }
  Stream& stream() override { return stream_; }
  Buffer allocate(std::size_t bytes) override;
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override;
  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) override;
  void all_gather(const void* send, void* recv, std::size_t count, DType dtype) override;
  void broadcast(void* data, std::size_t count, DType dtype, int root) override;
  void barrier() override;
  void abandon() noexcept override { transport_->fail(); }
  Traffic traffic() const override { return {transport_->sent_bytes(), operations_}; }
  std::size_t memory_bytes() const override { return transport_->memory_bytes(); }

 private:
  // Enqueues function(transport).
  template <typename F>
  void enqueue(F function);
  void release(void* data) noexcept;
  bool unwinding() const;

  int exceptions_;  // being handled when this was made
  std::uint64_t operations_ = 0;
  std::unique_ptr<HostTransport> transport_;
  Stream stream_;  // last: its worker uses the rest
};

}  // namespace lockstep
