// SPDX-License-Identifier: Apache-2.0
//
// NodeGroups: the ranks of a communicator as an exchange sees them that goes one way inside a node and
// another between nodes. Inside a node all its ranks work together. Between nodes as many of each go as the
// smallest node has: local rank l with local rank l of the others. The further ranks of a larger node give
// what they have and take what comes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/placement.h"

namespace lockstep {

class NodeGroups {
 public:
  // Collective. each_alone: as if every rank were a node of its own. `all` outlives this.
  NodeGroups(Communicator& all, bool each_alone);

  const Placement& placement() const { return placement_; }
  bool several_nodes() const { return placement_.nodes > 1; }
  int drivers() const { return placement_.smallest_node; }
  bool drives() const { return placement_.local_rank < drivers(); }
  // Whether no node has a second rank.
  bool all_alone() const { return placement_.largest_node == 1; }
  // Of this node; null where this rank is alone on it, or there is one node.
  Communicator* node() const { return node_.get(); }
  // Of this local rank of all nodes, in the order of the nodes; null where it does not drive or there is one
  // node. `all` itself where no node has a second rank.
  Communicator* across() const { return across_; }
  // Those that were made for this: not `all`.
  std::vector<Communicator*> own() const;

 private:
  Placement placement_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Communicator> made_across_;
  Communicator* across_ = nullptr;
};

}  // namespace lockstep
