// SPDX-License-Identifier: Apache-2.0
//
// NodeGroups: communicators for exchanges that work differently inside and between nodes. Inside a node all
// its ranks work together. Between nodes local rank l works with local rank l of the others, for as many
// local ranks as the smallest node has: these ranks drive. Further ranks of a larger node take part inside
// their node only.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/job/placement.h"

namespace lockstep {

class NodeGroups {
 public:
  // Collective. each_alone: treats every rank as a separate node. `all` outlives this. The communicators made
  // here compare their calls as often as `all` does now.
  NodeGroups(Communicator& all, bool each_alone);

  const Placement& placement() const { return placement_; }
  bool several_nodes() const { return placement_.nodes > 1; }
  int drivers() const { return placement_.smallest_node; }
  bool drives() const { return placement_.local_rank < drivers(); }
  // True if every node has one rank.
  bool all_alone() const { return placement_.largest_node == 1; }
  // The ranks of this node; null if this rank is alone on it, or there is one node.
  Communicator* node() const { return node_.get(); }
  // The ranks with this local rank on all nodes, in the order of the nodes; null if this rank does not drive
  // or there is one node. `all` itself if every node has one rank.
  Communicator* across() const { return across_; }
  // The communicators made here, without `all`.
  std::vector<Communicator*> own() const;

 private:
  Placement placement_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Communicator> made_across_;
  Communicator* across_ = nullptr;
};

}  // namespace lockstep
