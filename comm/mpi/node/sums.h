// SPDX-License-Identifier: Apache-2.0
//
// NodeSums: one node's terms of a sum over nodes: the partial sums of its ranks' data along the tree that
// need this node alone. If no term of any node has two ranks, the terms are the data itself. Sums are made by
// the piece, just before a piece is sent. A sum in the data's own type overwrites its first rank's data,
// which no other rank reads; a sum of 16-bit floats is fp32 and takes memory that is reused when the piece
// has been sent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/sums/reduce.h"
#include "comm/sums/sum_tree.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class NodeSums {
 public:
  // terms: those of all nodes, which are numbered from 0 and have at least one each.
  NodeSums(std::span<const PartialSum> terms, int node);
  // Prepares for elements of this type. If their sums need memory, they go to places numbered from 0, each of
  // place_bytes for each term.
  void prepare(DType dtype, std::size_t places, std::size_t place_bytes);

  // The type of the terms for data of this type.
  DType type_of(DType dtype) const { return adds_ ? accumulator_of(dtype) : dtype; }
  // This node's terms, `count` elements of type_of(dtype) each, from its ranks' data in the order of ranks.
  // They are valid until the same place is used again or the data changes.
  std::span<const void* const> add(std::span<void* const> data, std::size_t count, DType dtype, ReduceOp op,
                                   std::size_t place);
  std::size_t memory_bytes() const { return sums_.bytes(); }

 private:
  struct Range {  // of the node's ranks
    std::size_t first;
    std::size_t ranks;
  };

  std::vector<Range> ranges_;
  bool adds_ = false;  // true if any node adds ranks
  std::size_t place_bytes_ = 0;
  Buffer sums_;
  std::vector<const void*> sources_;
  std::vector<const void*> terms_;
};

}  // namespace lockstep
