// SPDX-License-Identifier: Apache-2.0
#include "comm/host_communicator.h"

#include <exception>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {

HostCommunicator::HostCommunicator(int rank, int size, std::unique_ptr<HostTransport> transport)
    : Communicator(transport->name(), rank, size),
      exceptions_(std::uncaught_exceptions()),
      transport_(std::move(transport)),
      stream_(Device{}, StreamUse::communication) {}

HostCommunicator::~HostCommunicator() {
  if (unwinding()) {
    transport_->fail();
    return;
  }
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning("a communicator ({}) ends after an error: {}", name(), error.what());
    transport_->fail();
  }
}

bool HostCommunicator::unwinding() const { return std::uncaught_exceptions() > exceptions_; }

void HostCommunicator::run(const Collective& collective) {
  stream_.enqueue([this, collective] { run_now(collective); });
}

void HostCommunicator::run_now(const Collective& collective) {
  started(collective);
  const std::uint64_t sent_before = transport_->sent_bytes();
  if (const std::int64_t met_ns = transport_->run(collective); met_ns > 0) met(collective, met_ns);
  sent(collective, transport_->sent_bytes() - sent_before);
  finished(collective);
}

Buffer HostCommunicator::allocate(std::size_t bytes) {
  void* data = nullptr;
  stream_.enqueue([this, &data, bytes] { data = transport_->allocate(bytes); });
  stream_.synchronize();
  if (data == nullptr) return Buffer(bytes, Device{});
  return Buffer::adopt(data, bytes, Device{}, [this](void* address) { release(address); });
}

void HostCommunicator::release(void* data) noexcept {
  // Freeing is collective: a rank in trouble leaks rather than waits for peers that will not come.
  if (unwinding()) return transport_->fail();
  try {
    stream_.enqueue([this, data] { transport_->free(data); });
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning("memory of a communicator ({}) is not freed: {}", name(), error.what());
    transport_->fail();
  }
}

}  // namespace lockstep
