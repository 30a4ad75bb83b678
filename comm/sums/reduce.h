// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of every reduction in host memory, in one place, so that every path of every communicator
// gives the same bits: along the tree of comm/sums/sum_tree.h, 16-bit floats in fp32 and rounded once.
//
// Sources come in the order of ranks. Partial sums are kept like a binary counter: after r ranks one sum is
// pending for each 1 bit of r, the largest first, and adding the next rank carries like adding 1: two sums
// over as many ranks become one, the earlier on the left. After the last rank the pending sums are added from
// the right. So at most log2(ranks) + 1 sums are held at a time, the number of ranks need not be known before
// the last one, and 2^k terms added this way are a subtree.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"
#include "core/tensor/dtype.h"

namespace lockstep {

struct Reduction {
  DType from = DType::f32;  // of the sources
  DType to = DType::f32;    // of the destinations: `from`, its accumulator, or a type with accumulator `from`
  ReduceOp op = ReduceOp::sum;
  // For sources that are partial sums (comm/sums/sum_tree.h): the end of each. Empty: each source is one
  // rank.
  std::span<const int> ends = {};
};

bool reducible(DType dtype);
// The type in which elements are added: fp32 for floats, i32 for i32.
DType accumulator_of(DType dtype);

// destination[i] = source_0[i] + source_1[i] + ... along the tree, for every destination. A destination may
// be a source. Sums of i32 wrap; a maximum or minimum with a NaN is a NaN. Throws Error for a type without a
// sum, and for ends that do not make up the tree.
void reduce_along_tree(std::span<const void* const> sources, std::span<void* const> destinations,
                       std::size_t count, const Reduction& reduction);

}  // namespace lockstep
