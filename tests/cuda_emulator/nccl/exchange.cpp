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

// Whose share of a chunk begins where.
std::size_t share_begin(std::size_t count, int rank, int ranks) { return count * index(rank) / index(ranks); }

}  // namespace

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
  check_memory();
  {
    const Unseen unseen;
    if (communicator_.broken()) throw DeviceFault("a communicator whose ranks did not ask for the same");
    communicator_.segment().member(rank_).calls[communicator_.parity()] = call_;
  }
  if (!run_chunks()) return;
  const Unseen unseen;
  communicator_.count();
}

void Exchange::check_memory() const {
  const int device = communicator_.device();
  const bool send =
      operation_.send_bytes == 0 || is_device_memory(operation_.send, operation_.send_bytes, device);
  const bool recv =
      operation_.recv_bytes == 0 || is_device_memory(operation_.recv, operation_.recv_bytes, device);
  if (send && recv) return;
  const std::string message =
      fmt::format("rank {}: {} runs on memory that was freed", rank_, describe(call_));
  complain(ncclUnhandledCudaError, message);
  throw DeviceFault(message);
}

bool Exchange::run_chunks() {
  auto done = std::chrono::steady_clock::now();
  for (std::size_t first = 0; first < call_.count; first += chunk_) {
    const std::size_t count = std::min(chunk_, call_.count - first);
    publish(first, count);
    if (!meet()) return false;
    if (first == 0) {
      compare_calls();
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

// All ranks see the same calls, so either none of them goes on or all do.
void Exchange::compare_calls() {
  const Unseen unseen;
  int other = 0;
  const auto call_of = [this](int rank) {
    return communicator_.segment().member(rank).calls[communicator_.parity()];
  };
  while (other < ranks_ && call_of(other) == call_) ++other;
  if (other == ranks_) return;
  const std::string message =
      fmt::format("ranks must all ask for the same, but rank {} asks for {}, rank {} for {}", rank_,
                  describe(call_), other, describe(call_of(other)));
  communicator_.set_broken();
  communicator_.fail(ncclInvalidUsage, message);
  throw DeviceFault(message);
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
  }
  return true;
}

bool Exchange::all_reduce(std::size_t first, std::size_t count) {
  const auto offset = [&](int rank) { return share_begin(count, rank, ranks_) * element_bytes_; };
  const std::size_t mine = (offset(rank_ + 1) - offset(rank_)) / element_bytes_;
  reduce_slots(offset(rank_), slot(rank_) + offset(rank_), mine);  // which nobody else reads before they meet
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
