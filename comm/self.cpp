// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"
#include "comm/reduce.h"
#include "core/error.h"

namespace lockstep {
namespace {

// On any device: all it needs is a stream that copies.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(Device device)
      : Communicator(0, 1), device_(device), stream_(device, StreamUse::communication) {}

  std::string_view name() const override { return "self"; }
  Stream& stream() override { return stream_; }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes, device_); }
  void all_reduce(void*, std::size_t, DType dtype, ReduceOp) override {
    CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
    ++operations_;
  }
  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp) override {
    CHECK(reducible(dtype), "{} cannot be reduced", name_of(dtype));
    copy(send, recv, count * size_of(dtype));
  }
  void all_gather(const void* send, void* recv, std::size_t count, DType dtype) override {
    copy(send, recv, count * size_of(dtype));
  }
  void broadcast(void*, std::size_t, DType, int root) override {
    CHECK(root == 0, "root {} of 1 rank", root);
    ++operations_;
  }
  void barrier() override { ++operations_; }
  void abandon() noexcept override {}  // there are no peers
  Traffic traffic() const override { return {.sent_bytes = 0, .operations = operations_}; }

 private:
  void copy(const void* send, void* recv, std::size_t bytes) {
    ++operations_;
    if (send != recv && bytes > 0) stream_.copy(recv, send, bytes);
  }

  Device device_;
  std::uint64_t operations_ = 0;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(Device device) {
  return std::make_unique<SelfCommunicator>(device);
}

}  // namespace lockstep
