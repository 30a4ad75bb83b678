// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda_emulator/nccl/errors.h"
#include "tests/cuda_emulator/nccl/reduction.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// The first element of a rank's share of a chunk.
std::size_t share_begin(std::size_t count, int rank, int ranks) { return count * index(rank) / index(ranks); }

}  // namespace

void require_memory(const EmulatedCommunicator& communicator, const Call& call, const void* data,
                    std::size_t bytes) {
  if (bytes == 0 || is_device_memory(data, bytes, communicator.device())) return;
  const std::string message =
      fmt::format("rank {}: {} runs on memory that was freed", communicator.rank(), describe(call));
  complain(ncclUnhandledCudaError, message);
  throw DeviceFault(message);
}

void end_with_mistake(EmulatedCommunicator& communicator, const std::string& message) {
  communicator.set_broken();
  communicator.fail(ncclInvalidUsage, message);
  throw DeviceFault(message);
}

void compare_calls(EmulatedCommunicator& communicator, const Call& mine) {
  const Unseen unseen;
  const auto call_of = [&](int rank) {
    return communicator.segment().member(rank).calls[communicator.parity()];
  };
  int other = 0;
  while (other < communicator.ranks() && call_of(other) == mine) ++other;
  if (other == communicator.ranks()) return;
  end_with_mistake(communicator,
                   fmt::format("all ranks must make the same call, but rank {} called {}, rank {} called {}",
                               communicator.rank(), describe(mine), other, describe(call_of(other))));
}

Exchange::Exchange(EmulatedCommunicator& communicator, const Operation& operation)
    : communicator_(communicator),
      operation_(operation),
      call_(operation.call),
      rank_(communicator.rank()),
      ranks_(communicator.ranks()),
      element_bytes_(size_of_type(call_.type)),
      chunk_(kChunkBytes / element_bytes_) {
  if (call_.kind == Kind::reduce_scatter) chunk_ /= index(ranks_);  // a slot holds a part for each rank
}

void Exchange::run() {
  require_memory(communicator_, call_, operation_.send, operation_.send_bytes);
  require_memory(communicator_, call_, operation_.recv, operation_.recv_bytes);
  {
    const Unseen unseen;
    if (communicator_.broken())
      throw DeviceFault("the communicator is broken, because its ranks made different calls");
    communicator_.segment().member(rank_).calls[communicator_.parity()] = call_;
  }
  if (!run_chunks()) return;
  const Unseen unseen;
  communicator_.count();
}

bool Exchange::run_chunks() {
  auto done = std::chrono::steady_clock::now();
  for (std::size_t first = 0; first < call_.count; first += chunk_) {
    const std::size_t count = std::min(chunk_, call_.count - first);
    publish(first, count);
    if (!meet()) return false;
    if (first == 0) {
      compare_calls(communicator_, call_);
      done = std::chrono::steady_clock::now() + communicator_.ring().least_time(call_);
    }
    if (!collect(first, count)) return false;
    communicator_.next_chunk();
  }
  const Unseen unseen;
  return communicator_.ledger().sleep_until(done);
}

bool Exchange::meet() {
  const Unseen unseen;
  return communicator_.meet();
}

void Exchange::announce_contribution() {
  if (contributes(call_, rank_)) announce(communicator_.order().of(rank_, communicator_.parity()));
}
void Exchange::follow_contributions() {
  if (!receives(call_, rank_)) return;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (contributes(call_, peer)) follow(communicator_.order().of(peer, communicator_.parity()));
  }
}

std::byte* Exchange::slot(int rank) { return communicator_.segment().slot(rank, communicator_.parity()); }

void Exchange::publish(std::size_t first, std::size_t count) {
  const std::size_t bytes = count * element_bytes_;
  const std::byte* from = operation_.send + first * element_bytes_;
  if (call_.kind == Kind::reduce_scatter) {
    for (std::size_t part = 0; part < index(ranks_); ++part) {
      std::memcpy(slot(rank_) + part * chunk_ * element_bytes_, from + part * call_.count * element_bytes_,
                  bytes);
    }
  } else if (contributes(call_, rank_)) {
    std::memcpy(slot(rank_), from, bytes);
  }
  announce_contribution();
}

bool Exchange::collect(std::size_t first, std::size_t count) {
  follow_contributions();
  if (!receives(call_, rank_)) return true;
  std::byte* to = operation_.recv + first * element_bytes_;
  switch (call_.kind) {
    case Kind::all_reduce:
      return all_reduce(first, count);
    case Kind::all_gather:
      gather(first, count);
      break;
    case Kind::reduce_scatter:
      reduce_slots(index(rank_) * chunk_ * element_bytes_, to, count);
      break;
    case Kind::reduce:
      reduce_slots(0, to, count);
      break;
    case Kind::broadcast:
      if (operation_.recv != operation_.send) std::memcpy(to, slot(call_.root), count * element_bytes_);
      break;
    case Kind::transfers:  // handled by TransferExchange
      break;
  }
  return true;
}

bool Exchange::all_reduce(std::size_t first, std::size_t count) {
  const auto offset = [&](int rank) { return share_begin(count, rank, ranks_) * element_bytes_; };
  const std::size_t mine = (offset(rank_ + 1) - offset(rank_)) / element_bytes_;
  reduce_slots(offset(rank_), slot(rank_) + offset(rank_),
               mine);  // no peer reads this share before the meeting
  if (!meet()) return false;
  for (int peer = 0; peer < ranks_; ++peer) {
    std::memcpy(operation_.recv + first * element_bytes_ + offset(peer), slot(peer) + offset(peer),
                offset(peer + 1) - offset(peer));
  }
  return true;
}

void Exchange::gather(std::size_t first, std::size_t count) {
  for (int peer = 0; peer < ranks_; ++peer) {
    std::byte* to = operation_.recv + (index(peer) * call_.count + first) * element_bytes_;
    const bool in_place = peer == rank_ && to == operation_.send + first * element_bytes_;
    if (!in_place) std::memcpy(to, slot(peer), count * element_bytes_);
  }
}

void Exchange::reduce_slots(std::size_t offset, std::byte* to, std::size_t count) {
  std::vector<const std::byte*> from;
  for (int peer = 0; peer < ranks_; ++peer) from.push_back(slot(peer) + offset);
  reduce(static_cast<ncclDataType_t>(call_.type), static_cast<ncclRedOp_t>(call_.op), from, to, count);
}

}  // namespace lockstep::emulator
