// SPDX-License-Identifier: Apache-2.0
//
// NodeSums: what one node brings to a sum over nodes: of its ranks' data the partial sums along the tree, as
// far as they are of this node alone. Where no node has two ranks that are added first, the data itself.
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
  NodeSums(std::span<const PartialSum> terms, int node, int nodes);

  // What elements of this type are brought as.
  DType type_of(DType dtype) const { return adds_ ? accumulator_of(dtype) : dtype; }
  // That add() takes at a time: as many on every node.
  std::size_t most_elements(DType dtype) const { return term_bytes_ / size_of(type_of(dtype)); }
  // This node's terms, given its ranks' data in the order of ranks. Valid until the next call, or as long as
  // the data stays as it is.
  std::span<const void* const> add(std::span<const void* const> sources, std::size_t count, DType dtype,
                                   ReduceOp op);
  std::size_t memory_bytes() const { return sums_.bytes(); }

 private:
  struct Range {  // of the node's ranks
    std::size_t first;
    std::size_t ranks;
  };

  std::vector<Range> ranges_;
  bool adds_ = false;  // on some node
  std::size_t term_bytes_;
  Buffer sums_;
  std::vector<const void*> terms_;  // each one's place in sums_
};

}  // namespace lockstep
