// SPDX-License-Identifier: Apache-2.0
//
// CollectiveCase: one collective of one size, with size, count and bus bandwidth as nccl-tests define them,
// each rank's input, and its expected result. Inputs are small integers, whose sums are exact in every type
// and order, so that results are compared bit by bit.
#pragma once

#include <cstddef>
#include <string_view>

#include "comm/collective.h"
#include "core/tensor/dtype.h"

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
  std::size_t send_count() const;  // elements of a rank's input
  std::size_t recv_count() const;  // elements of a rank's result
  std::size_t send_bytes() const { return send_count() * size_of(dtype); }
  std::size_t recv_bytes() const { return recv_count() * size_of(dtype); }
  // The column "size": the larger of send_bytes() and recv_bytes(), so all ranks' shares together.
  std::size_t bytes() const;
  // Offsets of a rank's send and receive memory in one block of bytes().
  std::size_t in_place_send_offset(int rank) const;
  std::size_t in_place_recv_offset(int rank) const;
};

// The largest case of at most `bytes` bytes. Shares are multiples of 16 bytes, unless that leaves none.
// Throws UsageError if there is less than one element per rank, and for uint8 with a reducing collective.
CollectiveCase case_of(CollectiveKind kind, DType dtype, ReduceOp op, int ranks, std::size_t bytes);

// Ratio of bus bandwidth to algorithm bandwidth (size over time): the least that each rank must send, in
// multiples of the size, as in nccl-tests (doc/PERFORMANCE.md). 0 for a barrier.
double bus_factor(CollectiveKind kind, int ranks);

// Names as in nccl-tests: "float", "half", "bfloat16", "int32", "uint8"; "sum", "max", "min", or "none".
std::string_view type_name(DType dtype);
std::string_view redop_name(const CollectiveCase& c);

// Writes this rank's input: send_count() elements. (A broadcast uses only the root's.)
void fill_input(const CollectiveCase& c, int rank, std::byte* send);
// Number of wrong elements among this rank's recv_count() results.
std::size_t count_wrong(const CollectiveCase& c, int rank, const std::byte* recv);

}  // namespace lockstep
