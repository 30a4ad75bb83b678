// SPDX-License-Identifier: Apache-2.0
//
// Call: a rank's call of a communicator, as its peers see it in shared memory. The calls of all ranks must be
// equal. Operation: a call with this rank's memory. The sends and receives of one group are one call; the
// operation contains the transfers of the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nccl.h>

namespace lockstep::emulator {

enum class Kind : std::int32_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce, transfers };

struct Call {
  Kind kind = Kind::all_reduce;
  std::int32_t type = ncclFloat32;
  std::int32_t op = -1;      // none
  std::int32_t root = -1;    // none
  std::uint64_t count = 0;   // elements, as given to the function
  std::uint64_t number = 0;  // number among this rank's uncaptured calls, empty ones included; 0: captured
  bool captured = false;
  bool registered = false;  // all of this rank's memory is registered
  // The places in symmetric windows of the memory that peers access, which must be equal on all ranks; 0
  // where they do not. -1: the collective does not use windows.
  std::int64_t send_place = -1;
  std::int64_t recv_place = -1;

  bool symmetric() const { return recv_place >= 0; }
  bool operator==(const Call&) const = default;
};

// A send or a receive.
struct Transfer {
  int peer = 0;
  std::int32_t type = ncclFloat32;
  std::uint64_t count = 0;
  std::byte* data = nullptr;  // only read by a send

  std::size_t bytes() const;
};

struct Operation {
  Call call;
  const std::byte* send = nullptr;  // null if this rank sends nothing
  std::size_t send_bytes = 0;
  std::byte* recv = nullptr;
  std::size_t recv_bytes = 0;
  int blocks = 0;  // of its kernel
  // For transfers instead of send and recv: at most one for each peer.
  std::vector<Transfer> sends = {};
  std::vector<Transfer> receives = {};
};

const char* name_of(Kind kind);
// 0 for an invalid or unemulated type.
std::size_t size_of_type(int type);
const char* name_of_type(int type);
// "ncclAllReduce of 1000 elements (ncclFloat32, ncclSum), call 17, registered"
std::string describe(const Call& call);

bool is_reduction(Kind kind);
bool has_root(Kind kind);
// Return whether this rank's memory is read or written.
bool contributes(const Call& call, int rank);
bool receives(const Call& call, int rank);

// The operation, with the sizes of its memory.
Operation make_operation(const Call& call, const void* send, void* recv, int rank, int ranks);
// Returns whether sent and received memory are disjoint, or equal as in NCCL's in-place operations.
bool well_placed(const Operation& operation, int rank);

}  // namespace lockstep::emulator
