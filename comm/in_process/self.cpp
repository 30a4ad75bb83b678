// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "comm/communicator.h"

namespace lockstep {
namespace {

// Works on any device that has a stream. On a CPU the stream is the calling thread: to wake another thread
// costs more than a small network's collectives, and there are no peers to wait for.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(Device device, std::shared_ptr<JobState> job)
      : Communicator("self", 0, 1, std::move(job)),
        device_(device),
        stream_(device, is_host_memory(device) ? StreamUse::compute : StreamUse::communication) {}

  std::string_view name() const override { return "self"; }
  Stream& stream() override { return stream_; }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes, device_); }
  std::vector<std::byte*> shared_places(void* own) override {
    return is_host_memory(device_) ? std::vector{static_cast<std::byte*>(own)} : std::vector<std::byte*>();
  }
  std::unique_ptr<Communicator> split(int colour, int) override {
    return colour < 0 ? nullptr : std::make_unique<SelfCommunicator>(device_, job());
  }

 private:
  void run(const Collective& collective) override {
    const bool on_host = stream_.runs_on_host();
    if (on_host) stream_.enqueue([this, collective] { started(collective); });
    const std::size_t bytes = collective.count * size_of(collective.dtype);
    if (collective.send != nullptr && collective.send != collective.recv)
      stream_.copy(collective.recv, collective.send, bytes);
    if (on_host) stream_.enqueue([this, collective] { finished(collective); });
  }

  Device device_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(Device device, std::shared_ptr<JobState> job) {
  return std::make_unique<SelfCommunicator>(device, std::move(job));
}

}  // namespace lockstep
