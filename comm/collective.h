// SPDX-License-Identifier: Apache-2.0
//
// Collective: one operation of all ranks of a communicator, as a value. The communicator numbers, checks and
// records it; its transport runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/dtype.h"

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
  std::int32_t bucket = -1;     // gradient bucket; -1: none
  std::int32_t layer = -1;      // network layer, in forward order; -1: none. At most one of the two is set
  bool beside_compute = false;  // compute that does not wait for it is enqueued after it
  // By the host's clock (now_ns()):
  std::int64_t final_ns = 0;     // when the last value to send was final; 0: unknown
  std::int64_t enqueued_ns = 0;  // when it was requested; 0: at enqueue
};

struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // of an all_reduce or reduce_scatter
  std::int32_t root = 0;        // of a broadcast
  const void* send = nullptr;   // of a reduce_scatter, all_gather or all_to_all
  void* recv = nullptr;         // also the input of in-place collectives
  // Elements of all data, of each rank's share (reduce_scatter, all_gather), or of each rank's block for each
  // other rank (all_to_all).
  std::size_t count = 0;
  CollectivePurpose purpose = {};
  std::uint64_t sequence = 0;  // from 1; the communicator sets it
};

// Text such as "all_reduce 17 of 4096 fp32 (sum, bucket 2)"; omits a sequence of 0.
std::string describe(const Collective& collective);

// The properties that must be equal on all ranks, packed. Two collectives match if their identities are
// equal.
struct CollectiveIdentity {
  std::uint64_t sequence = 0;
  std::uint64_t call = 0;  // kind, type, operation, root, bucket or layer
  std::uint64_t count = 0;

  bool operator==(const CollectiveIdentity&) const = default;
};
CollectiveIdentity identity_of(const Collective& collective);
// Inverse of identity_of(), without memory and times.
Collective collective_of(const CollectiveIdentity& identity);

// Hash of this collective and of all earlier ones, whose hash is `before`.
std::uint64_t chained_hash(std::uint64_t before, const CollectiveIdentity& identity);

// Payload bytes sent to other ranks, without protocol, and collectives so far.
struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t operations = 0;
};

// Collectives that were recorded with the work around them (Stream::record_work) instead of run.
struct RecordedCollectives {
  std::vector<Collective> collectives;
  std::uint64_t sent_bytes = 0;   // by one replay
  std::uint64_t hash_before = 0;  // of the calls before them
};

}  // namespace lockstep
