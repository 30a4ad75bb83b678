// SPDX-License-Identifier: Apache-2.0
//
// Collective: one operation that all ranks of a communicator take part in, as a value. A communicator is
// asked for it, numbers, checks and records it, and its transport runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace lockstep {

enum class CollectiveKind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier,
  all_to_all
};
enum class ReduceOp : std::uint8_t { sum, max, min };

std::string_view name_of(CollectiveKind kind);

struct CollectivePurpose {
  std::int32_t bucket = -1;  // of gradients; -1: none
  std::int32_t layer = -1;   // that asks other ranks, in forward order; -1: none. At most one of the two
  // By the host's clock (now_ns()):
  std::int64_t final_ns = 0;     // when the last of what is sent was final; 0: not told
  std::int64_t enqueued_ns = 0;  // when it was asked for, where somebody has looked; 0: as it is enqueued
};

struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // of an all_reduce or reduce_scatter
  std::int32_t root = 0;        // of a broadcast
  const void* send = nullptr;   // of a reduce_scatter, all_gather or all_to_all
  void* recv = nullptr;         // the data of what works in place
  // Elements: all, each rank's share of a reduce_scatter or all_gather, or what each rank of an all_to_all
  // has for each other.
  std::size_t count = 0;
  CollectivePurpose purpose = {};
  std::uint64_t sequence = 0;  // from 1; the communicator's to give
};

// "all_reduce 17 of 4096 f32 (sum, bucket 2)". A collective without a number is told without it.
std::string describe(const Collective& collective);

// What has to be the same on all ranks, packed: two collectives match when these do.
struct CollectiveIdentity {
  std::uint64_t sequence = 0;
  std::uint64_t call = 0;  // kind, type, operation, root, bucket or layer
  std::uint64_t count = 0;

  bool operator==(const CollectiveIdentity&) const = default;
};
CollectiveIdentity identity_of(const Collective& collective);
// Its inverse, without memory and times.
Collective collective_of(const CollectiveIdentity& identity);

// A hash of this and of all before it.
std::uint64_t chained_hash(std::uint64_t before, const CollectiveIdentity& identity);

// Counted where bytes leave a rank for another: payload, not protocol.
struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t operations = 0;
};

// Collectives that were recorded with the work around them (Stream::record_work) instead of run.
struct RecordedCollectives {
  std::vector<Collective> collectives;
  std::uint64_t sent_bytes = 0;  // by one replay
};

}  // namespace lockstep
