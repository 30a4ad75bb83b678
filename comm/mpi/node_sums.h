// SPDX-License-Identifier: Apache-2.0
//
// NodeSums: what one node brings to a sum over nodes: of its ranks' data the partial sums along the tree, as
// far as they are of this node alone. Where no node has two ranks that are added first, the data itself.
// Sums are made by the piece, when a piece is about to leave. A sum in the data's own type takes the place of
// the first rank's data that is in it, which nobody else reads; of 16-bit floats, whose sums are fp32, it
// takes memory that is used again when the piece has left.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/reduce.h"
#include "comm/sum_tree.h"
#include "core/buffer.h"

namespace lockstep {

class NodeSums {
 public:
  // terms are those of all nodes, which are numbered from 0 and have one each at least.
  NodeSums(std::span<const PartialSum> terms, int node);
  // What follows is of elements of this type, whose sums go to places numbered from 0 where they need memory:
  // each of so many bytes for each term.
  void prepare(DType dtype, std::size_t places, std::size_t place_bytes);

  // What elements of this type are brought as.
  DType type_of(DType dtype) const { return adds_ ? accumulator_of(dtype) : dtype; }
  // This node's terms, of `count` elements of type_of(dtype), given its ranks' data in the order of ranks.
  // They stay until the same place is asked for again, or as long as the data stays as it is.
  std::span<const void* const> add(std::span<void* const> data, std::size_t count, DType dtype, ReduceOp op,
                                   std::size_t place);
  std::size_t memory_bytes() const { return sums_.bytes(); }

 private:
  struct Range {  // of the node's ranks
    std::size_t first;
    std::size_t ranks;
  };

  std::vector<Range> ranges_;
  bool adds_ = false;  // on some node
  std::size_t place_bytes_ = 0;
  Buffer sums_;
  std::vector<const void*> sources_;
  std::vector<const void*> terms_;
};

}  // namespace lockstep
