// SPDX-License-Identifier: Apache-2.0
#include "comm/host_communicator.h"

#include <exception>
#include <utility>

#include "comm/reduce.h"
#include "core/error.h"
#include "core/log.h"

namespace lockstep {

HostCommunicator::HostCommunicator(int rank, int size, std::unique_ptr<HostTransport> transport)
    : Communicator(rank, size),
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

template <typename F>
void HostCommunicator::enqueue(F function) {
  stream_.enqueue([this, function] { function(*transport_); });
}

Buffer HostCommunicator::allocate(std::size_t bytes) {
  void* data = nullptr;
  enqueue([&data, bytes](HostTransport& transport) { data = transport.allocate(bytes); });
  stream_.synchronize();
  if (data == nullptr) return Buffer(bytes, Device{});
  return Buffer::adopt(data, bytes, Device{}, [this](void* address) { release(address); });
}

void HostCommunicator::release(void* data) noexcept {
  // Freeing is collective: a rank in trouble leaks rather than waits for peers that will not come.
  if (unwinding()) return transport_->fail();
  try {
    enqueue([data](HostTransport& transport) { transport.free(data); });
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning("memory of a communicator ({}) is not freed: {}", name(), error.what());
    transport_->fail();
  }
}

void HostCommunicator::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  CHECK(data != nullptr || count == 0);
  CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
  ++operations_;
  if (count == 0) return;
  enqueue([=](HostTransport& transport) { transport.all_reduce(data, count, dtype, op); });
}

void HostCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype,
                                      ReduceOp op) {
  CHECK((send != nullptr && recv != nullptr) || count == 0);
  CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
  ++operations_;
  if (count == 0) return;
  enqueue([=](HostTransport& transport) { transport.reduce_scatter(send, recv, count, dtype, op); });
}

void HostCommunicator::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  CHECK((send != nullptr && recv != nullptr) || count == 0);
  ++operations_;
  if (count == 0) return;
  enqueue([=](HostTransport& transport) { transport.all_gather(send, recv, count, dtype); });
}

void HostCommunicator::broadcast(void* data, std::size_t count, DType dtype, int root) {
  CHECK(data != nullptr || count == 0);
  CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  ++operations_;
  if (count == 0) return;
  enqueue([=](HostTransport& transport) { transport.broadcast(data, count, dtype, root); });
}

void HostCommunicator::barrier() {
  ++operations_;
  enqueue([](HostTransport& transport) { transport.barrier(); });
}

}  // namespace lockstep
