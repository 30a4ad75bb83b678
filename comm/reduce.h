// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of every reduction in host memory, in one place, so that each path of each communicator
// gives the same bits: sources are added in the order given, 16-bit floats in fp32 and rounded once.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"
#include "core/dtype.h"

namespace lockstep {

struct Reduction {
  DType from = DType::f32;  // of the sources
  DType to = DType::f32;    // of the destinations: the same, or from's accumulator, or the other way round
  ReduceOp op = ReduceOp::sum;
  // Sources are reduced in groups of this many (the ranks of a node), then group by group. 0: one group.
  std::size_t group = 0;
};

bool reducible(DType dtype);
// What elements are added in: fp32 for floats, i32 for i32.
DType accumulator_of(DType dtype);

// destination[i] = source_0[i] + source_1[i] + ... for every destination. A destination may be a source. Sums
// of i32 wrap; a maximum with a NaN is a NaN.
void reduce_in_rank_order(std::span<const void* const> sources, std::span<void* const> destinations,
                          std::size_t count, const Reduction& reduction);

}  // namespace lockstep
