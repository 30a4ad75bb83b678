// SPDX-License-Identifier: Apache-2.0
#include "comm/in_process/host_communicator.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "core/timeline.h"

namespace lockstep {

std::int64_t HostTransport::run(const Collective& c) {
  met_ns_ = 0;
  place_.collective = &c;
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      all_reduce(c.recv, c.count, c.dtype, c.op);
      break;
    case CollectiveKind::reduce_scatter:
      reduce_scatter(c.send, c.recv, c.count, c.dtype, c.op);
      break;
    case CollectiveKind::all_gather:
      all_gather(c.send, c.recv, c.count, c.dtype);
      break;
    case CollectiveKind::all_to_all:
      all_to_all(c.send, c.recv, c.count, c.dtype);
      break;
    case CollectiveKind::broadcast:
      broadcast(c.recv, c.count, c.dtype, c.root);
      break;
    case CollectiveKind::barrier:
      barrier();
  }
  place_.collective = nullptr;
  return met_ns_;
}

void HostTransport::met(std::int64_t at_ns) {
  if (met_ns_ == 0) met_ns_ = at_ns;
}

HostCommunicator::HostCommunicator(std::unique_ptr<HostTransport> transport)
    : Communicator(transport->name(), transport->rank(), transport->size(), transport->job()),
      transport_(std::move(transport)),
      stream_(Device{}, StreamUse::communication) {
  if (!transport_->node_of_rank().empty()) set_nodes(transport_->node_of_rank());
}

// Collectives under way may wait for peers that never come.
HostCommunicator::~HostCommunicator() {
  const std::int64_t under_way = under_way_;
  if (under_way > 0) {
    abandon(fmt::format("{} destroyed its communicator ({}) with {}", current_place(), name(),
                        counted(under_way, "unfinished collective")));
  }
  try {
    stream_.synchronize();
  } catch (const GaveUp&) {  // reported to the caller that waited
  } catch (const std::exception& error) {
    log::warning("a collective of the communicator {} failed: {}", name(), error.what());
  }
}

void HostCommunicator::run(const Collective& collective) {
  ++under_way_;
  stream_.enqueue([this, collective] { perform(collective); });
}

void HostCommunicator::run_to_its_end(const Collective& collective) {
  ++under_way_;
  stream_.run([this, collective] { perform(collective); });
}

void HostCommunicator::perform(const Collective& collective) {
  struct AtTheEnd {  // with an error, too: a collective that throws has ended
    std::atomic<std::int64_t>& under_way;
    ~AtTheEnd() { --under_way; }
  } const at_the_end{under_way_};
  started(collective);
  const std::uint64_t sent_before = transport_->sent_bytes();
  if (const std::int64_t met_ns = transport_->run(collective); met_ns > 0) met(collective, met_ns);
  sent(collective, transport_->sent_bytes() - sent_before);
  finished(collective);
}

Buffer HostCommunicator::allocate(std::size_t bytes) {
  std::shared_ptr<void> memory;
  stream_.enqueue([this, &memory, bytes] { memory = transport_->allocate(bytes); });
  stream_.synchronize();
  if (memory == nullptr) return Buffer(bytes, Device{});
  void* data = memory.get();
  return Buffer::adopt(data, bytes, Device{}, [memory = std::move(memory)](void*) {});
}

std::vector<std::byte*> HostCommunicator::shared_places(void* own) {
  std::vector<std::byte*> places;
  stream_.enqueue([this, &places, own] { places = transport_->shared_places(own); });
  stream_.synchronize();
  return places;
}

std::unique_ptr<Communicator> HostCommunicator::split(int colour, int key) {
  std::unique_ptr<HostTransport> group;
  stream_.enqueue([this, &group, colour, key] { group = transport_->split(colour, key); });
  stream_.synchronize();
  return group == nullptr ? nullptr : std::make_unique<HostCommunicator>(std::move(group));
}

}  // namespace lockstep
