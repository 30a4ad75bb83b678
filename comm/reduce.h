// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of every reduction in host memory, in one place, so that each path of each communicator
// gives the same bits: along the tree of comm/sum_tree.h, 16-bit floats in fp32 and rounded once.
//
// Sources come in the order of ranks, and what has been added so far is kept as in a binary counter: after r
// ranks a partial sum is pending for each 1 among the digits of r, the larger the further left, and the next
// rank is carried as a 1 is: two sums over as many ranks become one, the earlier on the left. After the last
// rank what is pending is added from the right. So at most log2(ranks) + 1 sums are held at a time, nobody
// need know the number of ranks before the last one, and whoever adds 2^k terms of his own so and gives the
// total to others has added a subtree.
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
  // Of sources that are partial sums (comm/sum_tree.h): the end of each. Empty: each source is one rank.
  std::span<const int> ends = {};
};

bool reducible(DType dtype);
// What elements are added in: fp32 for floats, i32 for i32.
DType accumulator_of(DType dtype);

// destination[i] = source_0[i] + source_1[i] + ... along the tree, for every destination. A destination may
// be a source. Sums of i32 wrap; a maximum or minimum with a NaN is a NaN. Throws Error on types that have no
// sum, and on ends that do not make up the tree.
void reduce_along_tree(std::span<const void* const> sources, std::span<void* const> destinations,
                       std::size_t count, const Reduction& reduction);

}  // namespace lockstep
