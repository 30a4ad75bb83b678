// SPDX-License-Identifier: Apache-2.0
//
// HostCommunicator: the Communicator of every CPU backend. It owns the worker thread and runs collectives
// there; what a backend adds is a HostTransport: the collectives themselves, blocking, called by the worker
// only. Nothing is allocated for an operation.
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

  // Blocks until this rank's part is done. Returns when all ranks were there, by now_ns(), or 0 where it
  // cannot tell. count is 0 for a barrier only.
  virtual std::int64_t run(const Collective& collective) = 0;
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
  void abandon() noexcept override { transport_->fail(); }
  std::size_t memory_bytes() const override { return transport_->memory_bytes(); }

 private:
  void run(const Collective& collective) override;
  // On the worker.
  void run_now(const Collective& collective);
  void release(void* data) noexcept;
  bool unwinding() const;

  int exceptions_;  // being handled when this was made
  std::unique_ptr<HostTransport> transport_;
  Stream stream_;  // last: its worker uses the rest
};

}  // namespace lockstep
