// SPDX-License-Identifier: Apache-2.0
//
// CollectiveCase: one collective of one size as a benchmark runs it, counted as nccl-tests count: what of it
// is "size" and "count", what bus bandwidth is, what each rank gives and what it must find. Inputs are small
// integers, whose sums are exact in every type and order, so that results are compared bit by bit.
#pragma once

#include <cstddef>
#include <string_view>

#include "comm/collective.h"
#include "core/dtype.h"

namespace lockstep {

struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int ranks = 1;
  std::size_t count =
      0;  // elements, as Communicator's methods count: each rank's share of a scatter or gather

  bool reduces() const;
  std::size_t send_count() const;  // elements a rank gives
  std::size_t recv_count() const;  // elements a rank finds
  std::size_t send_bytes() const { return send_count() * size_of(dtype); }
  std::size_t recv_bytes() const { return recv_count() * size_of(dtype); }
  // The column "size": the larger of the two, so all ranks' shares together.
  std::size_t bytes() const;
  // Where the send and receive memory of a rank begin when they are in one block of bytes().
  std::size_t in_place_send_offset(int rank) const;
  std::size_t in_place_recv_offset(int rank) const;
};

// The largest that fits into so many bytes; shares are multiples of 16 bytes where that leaves any. Throws
// UsageError where there is not an element for every rank, and where the type is not one that can be reduced.
CollectiveCase case_of(CollectiveKind kind, DType dtype, ReduceOp op, int ranks, std::size_t bytes);

// Bus bandwidth over algorithm bandwidth (size over time): what each rank must at least send, in sizes. As
// nccl-tests define it (their doc/PERFORMANCE.md). 0 for a barrier.
double bus_factor(CollectiveKind kind, int ranks);

// As nccl-tests write them: "float", "half", "bfloat16", "int32", "uint8"; "sum", "max", "min", or "none".
std::string_view type_name(DType dtype);
std::string_view redop_name(const CollectiveCase& c);

// What this rank gives: send_count() elements. (Of a broadcast only the root's is looked at.)
void fill_input(const CollectiveCase& c, int rank, std::byte* send);
// What of the recv_count() elements that this rank has found is not what it should be.
std::size_t count_wrong(const CollectiveCase& c, int rank, const std::byte* recv);

}  // namespace lockstep
